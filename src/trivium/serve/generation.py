"""The engine's answers as the routes use them: watched for metrics, several prompts at once, and bounded work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import Struct

from trivium.llm.outputs import RequestOutput
from trivium.llm.params import SamplingParams
from trivium.llm.prompts import TokensPrompt
from trivium.observe.events import PromptComputed, SequenceEnded, TokensGenerated
from trivium.serve.access.caller import asking
from trivium.serve.disconnect import cancel_and_wait
from trivium.serve.engine_notes import EngineNotes
from trivium.serve.models.served import ServedModel
from trivium.serve.request_times import current_request
from trivium.serve.token_clock import TokenClock
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
    caller, times = asking(), current_request()
    clock = TokenClock(model, job.id, times)
    num_prompt_tokens = len(job.prompt["prompt_token_ids"])
    notes = EngineNotes(num_prompt_tokens)
    if times is not None:
        times.add(model.name, notes)
    ended: set[int] = set()
    priority, salt = caller.priority_of(job.priority), caller.salt_of(job.salt)
    caller.charge(num_prompt_tokens)
    answers = model.llm.generate(
        job.prompt, job.sampling, job.id, priority=priority, salt=salt, place=current_place(), watch=notes.watch
    )
    try:
        async with aclosing(answers) as outputs:
            async for output in outputs:
                if not notes.num_generated_tokens and any(one.delta.token_ids for one in output.outputs):
                    model.emit(PromptComputed(job.id, model.name, num_prompt_tokens, output.num_cached_tokens))
                for completion in output.outputs:
                    index = completion.index
                    if count := len(completion.delta.token_ids):
                        model.emit(TokensGenerated(job.id, model.name, index, count))
                        caller.charge(count)
                        notes.num_generated_tokens += count
                        clock.came(index, count)
                    if completion.finish_reason is not None and index not in ended:
                        ended.add(index)
                        model.emit(SequenceEnded(job.id, model.name, index, completion.finish_reason))
                if output.finished:
                    notes.end()
                yield output
                clock.taken()
    finally:
        notes.end()


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
    queue: asyncio.Queue[_Piece | Exception | None] = asyncio.Queue()

    async def pump(number: int, job: Job) -> None:
        try:
            async with aclosing(generate(model, job)) as outputs:
                async for output in outputs:
                    piece = _Piece(number, output)
                    queue.put_nowait(piece)
                    await piece.taken.wait()
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
                yield item.number, item.output
                item.taken.set()
    finally:
        await cancel_and_wait(*tasks)


@dataclass(frozen=True)
class _Piece:
    number: int  # of the job
    output: RequestOutput
    taken: asyncio.Event = field(default_factory=asyncio.Event)  # the reader is back for more


async def beside_the_loop(model: ServedModel, size: int, work: Callable[[], T]) -> T:
    """Work on `size` characters of text: here if it is short, in a thread if it would hold up everybody else."""
    if size <= model.limits.inline_text_chars:
        return work()
    return await asyncio.to_thread(work)
