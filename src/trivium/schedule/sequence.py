"""A sequence is one of the n continuations of a request: its tokens, how far they are computed, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Container
from enum import Enum

import msgspec

from trivium.cache.block_cache import BlockCache
from trivium.cache.tables import BlockTables
from trivium.schedule.open_account import OpenAccount
from trivium.types.mix import GOLDEN, mix
from trivium.types.request import BACKGROUND_PRIORITY, Request, Sampling
from trivium.types.step import RowStart

NO_ROW = -1


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Sequence:
    __slots__ = (
        "account",
        "family",
        "has_begun",
        "index",
        "is_background",
        "max_len",
        "needs_host",
        "num_awaited",
        "num_computed",
        "num_planned",
        "num_prompt",
        "num_prompt_logprobs_told",
        "num_unstoppable",
        "rank",
        "request",
        "row",
        "state",
        "stop_tokens",
        "tables",
        "tokens",
    )

    def __init__(
        self,
        family: Family,
        index: int,
        cache: BlockCache,
        max_model_len: int,
        needs_host: str | None,
        account: OpenAccount,
    ) -> None:
        request = family.request
        self.family = family
        self.request = request
        self.index = index
        self.is_background = request.priority >= BACKGROUND_PRIORITY
        self.rank = (request.priority, request.arrival, request.id, index)  # lower goes first, and is preempted last
        self.tokens = list(request.prompt)  # and then those generated
        self.num_prompt = len(request.prompt)
        self.num_computed = 0  # tokens whose keys and values are in the blocks; it chases len(tokens)
        self.num_planned = 0  # and those that the steps in flight compute
        self.num_awaited = 0  # tokens that the steps in flight draw; the device knows them before we do
        self.needs_host = needs_host  # why no position can be planned before its token is known; None: it can
        self.num_unstoppable = self.num_prompt + request.stopping.min_tokens  # the tokens after them may be stop tokens
        self.max_len = min(self.num_prompt + request.stopping.max_tokens, max_model_len)
        self.stop_tokens = frozenset(request.stopping.stop_token_ids)
        self.state = State.WAITING
        self.account = account
        self.row = NO_ROW
        self.tables = BlockTables(cache)
        self.has_begun = False
        # Prompt tokens whose log probabilities need no computing any more. The first token has none, and of a
        # request's sequences only the first tells them: they are the same for all.
        wants = index == 0 and request.sampling.prompt_logprobs is not None
        self.num_prompt_logprobs_told = 1 if wants else self.num_prompt

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Positions that could be planned now."""
        return len(self.tokens) + self.num_awaited - self.num_planned

    @property
    def queue_key(self) -> tuple[int, bool, float, str, int]:
        """Order in the waiting queue: by rank, but within a priority those that have begun before go first."""
        priority, arrival, request_id, index = self.rank
        return priority, not self.has_begun, arrival, request_id, index

    @property
    def may_reuse_prompt(self) -> bool:
        """Whether another sequence's computed prompt saves it all work but the last prompt token's."""
        return self.num_generated == 0 and self.num_prompt_logprobs_told == self.num_prompt

    @property
    def reusable_tokens(self) -> list[int]:
        """Tokens to look for in the prefix cache; positions whose log probabilities are still due must be computed."""
        if self.num_prompt_logprobs_told < self.num_prompt:
            return self.tokens[: self.num_prompt_logprobs_told]
        return self.tokens

    def row_start(self) -> RowStart:
        return RowStart(
            row=self.row,
            request_id=self.request.id,
            index=self.index,
            tokens=tuple(self.tokens),
            num_prompt_tokens=self.num_prompt,
            sampling=sampling_of(self.request, self.index),
            stopping=self.request.stopping,
        )


class Family:
    """The sequences of one request that have not ended."""

    __slots__ = ("num_cached_tokens", "num_covered", "prefilling", "request", "sequences")

    def __init__(
        self,
        request: Request,
        cache: BlockCache,
        max_model_len: int,
        needs_host: str | None,
        open_account: Callable[[], OpenAccount],
    ) -> None:
        self.request = request
        self.sequences = [
            Sequence(self, index, cache, max_model_len, needs_host, open_account()) for index in range(request.n)
        ]
        self.num_cached_tokens: int | None = None  # found by the first to begin; None: none has begun
        self.num_covered = 0  # prompt tokens that were found or computed, by whichever came furthest
        # A running one that had more than a block of the prompt to compute: the others wait, so as to share it.
        self.prefilling: Sequence | None = None

    def fork_source(self, started: Container[int]) -> Sequence | None:
        """A running sequence that has computed the prompt and still holds what its last token sees.

        Not one whose row is among those `started` in the step being planned: it may share blocks that this very step
        fills, and a fork's copy of such a block would be made before that.
        """
        num_prompt = len(self.request.prompt)
        for sequence in self.sequences:
            if (
                sequence.state is State.RUNNING
                and sequence.row not in started
                and sequence.num_computed >= num_prompt
                and sequence.tables.can_fork(num_prompt)
            ):
                return sequence
        return None


def sampling_of(request: Request, index: int) -> Sampling:
    """How the request's sequence `index` draws: with a seed of its own, and telling prompt logprobs only if first."""
    if index == 0:
        return request.sampling
    return msgspec.structs.replace(
        request.sampling, seed=sequence_seed(request.sampling.seed, index), prompt_logprobs=None
    )


def sequence_seed(seed: int, index: int) -> int:
    """The seed of sequence `index` of a request: the request's own for the first, a mix for the others."""
    return seed if index == 0 else mix(seed + index * GOLDEN)
