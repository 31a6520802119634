"""The engine's answers as the routes use them: watched for metrics, several prompts at once, and bounded work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TypeVar

from msgspec import Struct

from trivium.llm.outputs import RequestMetrics, RequestOutput
from trivium.llm.params import SamplingParams
from trivium.llm.prompts import TokensPrompt
from trivium.observe.events import FirstToken, SequenceEnded, TokensGenerated
from trivium.observe.request_account import SequenceGroup
from trivium.serve.access.caller import asking
from trivium.serve.disconnect import cancel_and_wait
from trivium.serve.models.served import ServedModel
from trivium.serve.request_times import current_request
from trivium.serve.visit import current_place

T = TypeVar("T")


class Job(Struct, frozen=True):
    """One prompt for the engine, and how it is to be answered."""

    id: str
    prompt: TokensPrompt
    sampling: SamplingParams
    priority: int | None = None  # None: what the caller's requests have
    salt: str = ""


async def generate(model: ServedModel, job: Job) -> AsyncGenerator[RequestOutput]:
    """The answer as it grows. Closing the generator gives back all that the job holds."""
    caller = asking()
    began = time.monotonic()
    last_piece: dict[int, float] = {}  # by the sequence's index
    ended: set[int] = set()
    priority, salt = caller.priority_of(job.priority), caller.salt_of(job.salt)
    caller.charge(len(job.prompt["prompt_token_ids"]))
    answers = model.llm.generate(job.prompt, job.sampling, job.id, priority=priority, salt=salt, place=current_place())
    with noted(job, began) as group:
        async with aclosing(answers) as outputs:
            async for output in outputs:
                now = time.monotonic()
                if not last_piece and any(completion.delta.token_ids for completion in output.outputs):
                    model.emit(FirstToken(job.id, len(output.prompt_token_ids), output.num_cached_tokens, now - began))
                for completion in output.outputs:
                    index = completion.index
                    if count := len(completion.delta.token_ids):
                        before = last_piece.get(index)
                        seconds = None if before is None else now - before
                        model.emit(TokensGenerated(job.id, index, count, seconds))
                        caller.charge(count)
                        group.num_generated_tokens += count
                        last_piece[index] = now
                    if completion.finish_reason is not None and index not in ended:
                        ended.add(index)
                        model.emit(SequenceEnded(job.id, index, completion.finish_reason))
                if output.finished:
                    group.finish(output.metrics)
                yield output


@contextmanager
def noted(job: Job, began: float) -> Iterator[GroupNotes]:
    """What is noted of the job comes into the account of the request that it belongs to, however it ends."""
    notes = GroupNotes(began)
    try:
        yield notes
    finally:
        if (times := current_request()) is not None:
            times.add(notes.group(len(job.prompt["prompt_token_ids"])))


class GroupNotes:
    def __init__(self, began: float) -> None:
        self._began = began
        self._finished: tuple[float, RequestMetrics] | None = None
        self.num_generated_tokens = 0

    def finish(self, metrics: RequestMetrics) -> None:
        self._finished = time.monotonic(), metrics

    def group(self, num_prompt_tokens: int) -> SequenceGroup:
        if self._finished is None:
            return SequenceGroup(self._began, time.monotonic(), num_prompt_tokens, self.num_generated_tokens)
        ended, metrics = self._finished
        return SequenceGroup(
            metrics.arrival_time, ended, num_prompt_tokens, self.num_generated_tokens, metrics.accounts
        )


async def generate_whole(model: ServedModel, jobs: Sequence[Job]) -> list[RequestOutput]:
    """The finished answers of several prompts, which run together; the first failure ends them all."""
    async with aclosing(generate_merged(model, jobs)) as outputs:
        last = {number: output async for number, output in outputs}
    return [last[number] for number in range(len(jobs))]


async def generate_merged(model: ServedModel, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, RequestOutput]]:
    """(number of the job, its answer so far) as they come; the first failure ends them all."""
    if len(jobs) == 1:
        async with aclosing(generate(model, jobs[0])) as outputs:
            async for output in outputs:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue()

    async def pump(number: int, job: Job) -> None:
        try:
            async with aclosing(generate(model, job)) as outputs:
                async for output in outputs:
                    queue.put_nowait((number, output))
        except Exception as error:
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(number, job)) for number, job in enumerate(jobs)]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        await cancel_and_wait(*tasks)


async def beside_the_loop(model: ServedModel, size: int, work: Callable[[], T]) -> T:
    """Work on `size` characters of text: here if it is short, in a thread if it would hold up everybody else."""
    if size <= model.limits.inline_text_chars:
        return work()
    return await asyncio.to_thread(work)
