"""The grammar process as its parent holds it: started, spoken with, ended."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from trivium.grammar.limits import GrammarLimits
from trivium.grammar.masks import map_masks, mask_file
from trivium.grammar.messages import FROM_MATCHING, TRIALS, FromMatching, Line, Setup, Trial


class GrammarProcess:
    def __init__(
        self,
        model: str,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        num_rows: int,
        num_threads: int,
        limits: GrammarLimits,
    ) -> None:
        trials, their_trials = socket.socketpair()
        matching, their_matching = socket.socketpair()
        descriptor = mask_file(num_rows, vocab_size)
        setup = Setup(
            model=model,
            vocab_size=vocab_size,
            eos_token_ids=tuple(eos_token_ids),
            num_rows=num_rows,
            num_threads=num_threads,
            trial_descriptor=their_trials.fileno(),
            matching_descriptor=their_matching.fileno(),
            mask_descriptor=descriptor,
            limits=limits,
        )
        with their_trials, their_matching:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trivium.grammar.process"],
                stdin=subprocess.PIPE,
                stdout=2,  # what a library prints there must not mix with the program's own output
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},  # threads do not survive the forks
                pass_fds=(their_trials.fileno(), their_matching.fileno(), descriptor),
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(msgspec.msgpack.encode(setup))
        self.masks = map_masks(descriptor, num_rows, vocab_size)
        os.close(descriptor)
        for end in (trials, matching):
            end.settimeout(limits.answer_seconds)  # a process that does not read must not hold up the engine for ever
        self.trials: Line[Trial] = Line(trials, TRIALS)
        self.matching: Line[FromMatching] = Line(matching, FROM_MATCHING)

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        self.trials.close()
        self.matching.close()
        self._process.kill()
        self._process.wait()
