"""A scheduler, a fake device, a fake clock and clients, driven by hand; every promise is checked as it goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from fake_device import FakeDevice, logprobs_of, next_token

from trivium.schedule.limits import SchedulerLimits
from trivium.schedule.scheduler import Scheduler
from trivium.types.account import Account
from trivium.types.delta import Delta, FinishReason
from trivium.types.kv import KVGroup, KVSpec
from trivium.types.request import Request, Sampling, Stopping
from trivium.types.step import RowWork, Step, StepResult, TokenLogprobs

NATURAL = (FinishReason.STOP, FinishReason.LENGTH)


def kv_spec(*windows: int | None, block_size: int = 4) -> KVSpec:
    groups = tuple(KVGroup(layers=(layer,), window=window) for layer, window in enumerate(windows or (None,)))
    return KVSpec(block_size, groups, num_kv_heads=1, head_dim=1, dtype="float32")


def request(
    request_id: str,
    prompt: tuple[int, ...] | list[int],
    max_tokens: int = 4,
    *,
    arrival: float = 0.0,
    n: int = 1,
    priority: int = 0,
    salt: str = "",
    min_tokens: int = 0,
    stop: tuple[int, ...] = (),
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    seed: int = 1,
) -> Request:
    return Request(
        id=request_id,
        prompt=tuple(prompt),
        sampling=Sampling(seed=seed, logprobs=logprobs, prompt_logprobs=prompt_logprobs),
        stopping=Stopping(max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=stop),
        arrival=arrival,
        n=n,
        priority=priority,
        salt=salt,
    )


def expected_tokens(asked: Request, index: int) -> tuple[list[int], FinishReason]:
    tokens: list[int] = []
    while True:
        tokens.append(next_token(asked, index, len(asked.prompt) + len(tokens)))
        if tokens[-1] in asked.stopping.stop_token_ids and len(tokens) > asked.stopping.min_tokens:
            return tokens, FinishReason.STOP
        if len(tokens) == asked.stopping.max_tokens:
            return tokens, FinishReason.LENGTH


@dataclass
class Heard:
    """What a client heard of one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int = 0
    reason: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    is_cancelled: bool = False


class World:
    def __init__(
        self,
        spec: KVSpec | None = None,
        num_blocks: int = 64,
        *,
        max_rows: int = 8,
        max_batch_tokens: int = 64,
        max_chunk_tokens: int | None = None,
        max_model_len: int = 256,
        max_waiting: int | None = None,
        max_background_tokens: int = 1,
        prefix_caching: bool = True,
        easy_blocks: int | None = None,
        steps_ahead: int = 0,
        needs_host: Callable[[Request], str | None] = lambda request: None,
    ) -> None:
        self.spec = spec or kv_spec()
        self.limits = SchedulerLimits(
            max_rows=max_rows,
            max_batch_tokens=max_batch_tokens,
            max_chunk_tokens=max_chunk_tokens,
            max_model_len=max_model_len,
            max_waiting=max_waiting,
            max_background_tokens=max_background_tokens,
            prefix_caching=prefix_caching,
            easy_blocks=easy_blocks,
        )
        self.num_blocks = num_blocks
        self.scheduler = Scheduler(self.limits, self.spec, num_blocks, needs_host)
        self.steps_ahead = steps_ahead  # planned before the oldest step is committed
        self.in_flight: deque[StepResult] = deque()
        self.device = FakeDevice(self.spec, num_blocks, lambda request_id: self.requests[request_id])
        self.requests: dict[str, Request] = {}
        self.heard: dict[tuple[str, int], Heard] = {}
        self.now = 0.0
        self.num_steps = 0
        self.num_copies = 0

    def add(self, asked: Request) -> None:
        self.scheduler.add(asked, self.now)
        self.requests[asked.id] = asked
        self.heard.update({(asked.id, index): Heard() for index in range(asked.n)})

    def cancel(self, request_id: str, index: int | None = None) -> None:
        self.scheduler.cancel(request_id, index, self.now)
        for (id_, i), heard in self.heard.items():
            if id_ == request_id and index in (None, i) and heard.reason is None:
                heard.is_cancelled = True

    def step(
        self,
        num_tokens: Callable[[RowWork], int] = lambda work: 1,
        fails: Callable[[RowWork], bool] = lambda work: False,
        is_late: Callable[[int], bool] = lambda row: False,
        meanwhile: Callable[[], None] = lambda: None,
        breaks: Callable[[set[str]], bool] = lambda request_ids: False,
    ) -> Step | None:
        """Plans and runs one step, and commits the oldest in flight when enough are, or when there is none to plan.

        `meanwhile` happens before the commit. `breaks`: whether a step with rows of these requests fails as a whole.
        """
        self.now += 0.75
        step = self.scheduler.plan(self.now)
        self.now += 0.25
        if step is not None:
            self._check_limits(step)
            self._check_progress(step)
            self.num_copies += len(step.copies)
            if breaks(self._requests_in(step)):
                self.device.break_down(step)
                self.in_flight.clear()
                self.hear(self.scheduler.abandon("the fake broke", self.now))
                self.scheduler.assert_balanced()
                return step
            is_ahead_of_failures = any(result.failures for result in self.in_flight)
            self.in_flight.append(self.device.run(step, num_tokens, fails, is_ahead_of_failures, is_late))
            self.num_steps += 1
        elif not self.in_flight:
            assert not self.scheduler.stats().running and not self.scheduler.stats().waiting, "work is left undone"
            self.hear(self.scheduler.take_deltas())
            return None
        meanwhile()
        self.scheduler.assert_balanced()
        if step is None or len(self.in_flight) > self.steps_ahead:
            self.hear(self.scheduler.commit(self.in_flight.popleft(), self.now))
            self.scheduler.assert_balanced()
        return step

    def _requests_in(self, step: Step) -> set[str]:
        owners = {row: held.start.request_id for row, held in self.device.rows.items()}
        owners |= {start.row: start.request_id for start in step.starts}
        return {owners[work.row] for work in step.work}

    def drain(
        self, max_steps: int = 100_000, breaks: Callable[[set[str]], bool] = lambda request_ids: False
    ) -> list[Step]:
        """Runs until nothing is left."""
        steps = []
        while self.scheduler.has_work:
            assert len(steps) < max_steps, "a request never ends"
            step = self.step(breaks=breaks)
            if step is not None:
                steps.append(step)
        return steps

    def hear(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            heard = self.heard[delta.request_id, delta.index]
            assert heard.reason is None, "nothing is said of a sequence after its end"
            assert not heard.is_cancelled or delta == Delta(
                delta.request_id, delta.index, finish_reason=FinishReason.CANCELLED, account=delta.account
            ), "after a cancel only the end is told"
            assert (delta.account is not None) == (delta.finish_reason is not None), "the account comes with the end"
            if delta.account is not None:
                self._check_account(delta.account)
            if delta.tokens and not heard.tokens:
                heard.num_cached_tokens = delta.num_cached_tokens
            else:
                assert delta.num_cached_tokens == 0, "cached tokens are told once, with the first tokens"
            heard.tokens.extend(delta.tokens)
            heard.logprobs.extend(delta.logprobs)
            heard.prompt_logprobs.extend(delta.prompt_logprobs)
            heard.reason, heard.stop_token, heard.error = delta.finish_reason, delta.stop_token, delta.error
            self._check(delta.request_id, delta.index, heard)

    def _check_account(self, account: Account) -> None:
        """Each moment has one cause, and none is counted twice."""
        assert sum(account.causes().values()) == pytest.approx(account.seconds, abs=1e-9)
        assert all(seconds > -1e-9 for cause, seconds in account.causes().items() if cause != "handover")

    def _check(self, request_id: str, index: int, heard: Heard) -> None:
        """What was heard so far is what an undisturbed run gives, cut short only by a cancel or a failure."""
        asked = self.requests[request_id]
        tokens, reason = expected_tokens(asked, index)
        assert heard.tokens == tokens[: len(heard.tokens)]
        if heard.reason in NATURAL:
            assert (heard.tokens, heard.reason) == (tokens, reason)
            assert heard.stop_token == (tokens[-1] if reason is FinishReason.STOP else None)
        first = len(asked.prompt)
        if asked.sampling.logprobs is not None:
            assert heard.logprobs == [logprobs_of(token, first + i) for i, token in enumerate(heard.tokens)]
        if asked.sampling.prompt_logprobs is not None and index == 0:
            all_of_them = [logprobs_of(token, i) for i, token in enumerate(asked.prompt) if i > 0]
            assert heard.prompt_logprobs == (all_of_them if heard.tokens else all_of_them[: len(heard.prompt_logprobs)])
        else:
            assert not heard.prompt_logprobs

    def _check_limits(self, step: Step) -> None:
        assert step.num_tokens <= self.limits.max_batch_tokens
        assert len(step.work) <= self.limits.max_rows
        assert len({work.row for work in step.work}) == len(step.work)
        assert all(0 < work.count <= (self.limits.max_chunk_tokens or work.count) for work in step.work)
        assert step.work or step.ends or self.device.late, "a step does something"
        owners = {row: self.requests[held.start.request_id] for row, held in self.device.rows.items()}
        owners.update({start.row: self.requests[start.request_id] for start in step.starts})
        for work in step.work:
            longest = len(owners[work.row].prompt) + owners[work.row].stopping.max_tokens
            assert work.start + work.count < longest, "the last token that a sequence may have is not computed"

    def _check_progress(self, step: Step) -> None:
        """Somebody of the first priority is in every step, where each row can have a token.

        Not in a step planned ahead: there he may wait for his last token, or for the blocks of one who is to give way. Nor
        while tokens are late.
        """
        if self.limits.max_batch_tokens < self.limits.max_rows or self.in_flight or self.device.late:
            return
        if self.scheduler.stats().suspects:
            return
        owners = {row: held.start.request_id for row, held in self.device.rows.items()}
        owners.update({start.row: start.request_id for start in step.starts})
        served = {self.requests[owners[work.row]].priority for work in step.work}
        live = [id_ for (id_, _), heard in self.heard.items() if heard.reason is None and not heard.is_cancelled]
        if live:
            assert min(served) == min(self.requests[id_].priority for id_ in live)

    def assert_idle(self) -> None:
        """Nothing is held anywhere, and everybody heard an end."""
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.held_blocks) == (0, 0, 0)
        assert stats.free_blocks + stats.cached_blocks == self.num_blocks
        assert stats.taken_blocks - stats.freed_blocks == stats.cached_blocks
        covered = stats.cached_tokens + stats.computed_prompt_tokens + stats.left_prompt_tokens
        assert covered == stats.prompt_tokens, "each token of a prompt was found, computed or left, once"
        assert stats.moved_bytes == self.num_copies * self.spec.bytes_per_block
        assert not self.device.rows
        assert all(heard.reason is not None for heard in self.heard.values())
        self.scheduler.assert_balanced()
