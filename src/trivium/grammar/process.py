"""The grammar process: `python -m trivium.grammar.process`, its Setup on standard input.

It reads the tokenizer and splits in two: one half compiles grammars on trial, the other matches. Both end when the engine
does, for then their lines end.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import msgspec

from trivium.grammar.matching import MatchingServer
from trivium.grammar.messages import TO_MATCHING, TRIES, Line, Setup, Started
from trivium.grammar.trial import TrialServer
from trivium.grammar.vocabulary import read_vocabulary
from trivium.types.errors import TriviumError


def main() -> None:
    setup = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Setup)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the engine's end is ours
    trials = Line(socket.socket(fileno=setup.trial_descriptor), TRIES)
    matching = Line(socket.socket(fileno=setup.matching_descriptor), TO_MATCHING)
    try:
        vocabulary = read_vocabulary(Path(setup.model), setup.vocab_size, setup.eos_token_ids)
    except TriviumError as error:
        matching.send(Started(str(error)))
        return
    if os.fork() == 0:
        matching.close()
        TrialServer(trials, vocabulary, setup.limits).run()
        os._exit(0)
    trials.close()
    MatchingServer(matching, setup, vocabulary).run()


if __name__ == "__main__":
    main()
