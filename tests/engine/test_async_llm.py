"""Promises of AsyncLLM: streaming, leaving, aborting, health, drain. A real engine process and a small model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from random import Random

import pytest
from small_model import SmallModel, save_small_model

from trivium import AsyncLLM, SamplingParams
from trivium.llm.outputs import RequestOutput
from trivium.types.errors import EngineDeadError, InvalidRequestError, OverloadedError

CONTEXT = 1 << 16
ENDLESS = SamplingParams(max_tokens=60_000, ignore_eos=True, seed=1)  # does not end before its test
SHORT = SamplingParams(max_tokens=5, ignore_eos=True, seed=1)


class Hosted:
    """An AsyncLLM and the loop it lives in, for several tests in turn."""

    def __init__(self, llm: AsyncLLM, loop: asyncio.AbstractEventLoop) -> None:
        self.llm = llm
        self._loop = loop

    def run(self, work: Callable[[AsyncLLM], Awaitable[None]]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(240):
                await work(self.llm)

        self._loop.run_until_complete(limited())


@pytest.fixture(scope="module")
def patient_model(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    """The small model, with a context that holds a minute of tokens."""
    return save_small_model(tmp_path_factory.mktemp("patient"), CONTEXT)


@pytest.fixture(scope="module")
def hosted(patient_model: SmallModel) -> Iterator[Hosted]:
    llm = AsyncLLM(
        str(patient_model.directory), dtype="float32", kv_cache_dtype="float32", num_threads=1, kv_cache_bytes=256 << 20
    )
    with asyncio.Runner() as runner:
        assert llm.state == "starting"
        runner.run(llm.start())
        yield Hosted(llm, runner.get_loop())
        runner.run(llm.close())
        assert llm.state == "dead"


async def last_of(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    async for output in outputs:
        last = output
    return last


async def assert_nothing_held(llm: AsyncLLM) -> None:
    scheduler = (await llm.stats()).scheduler
    assert (scheduler.running, scheduler.waiting, scheduler.held_blocks) == (0, 0, 0)


def test_the_card_and_the_text_side_are_there_once_started(hosted: Hosted, patient_model: SmallModel) -> None:
    llm = hosted.llm
    assert llm.card.name == patient_model.directory.name
    assert llm.card.max_model_len == CONTEXT
    assert llm.tokenizer is not None and llm.template is not None
    assert llm.state == "ready"


def test_a_generator_that_is_closed_gives_everything_back(hosted: Hosted) -> None:
    async def work(llm: AsyncLLM) -> None:
        async with aclosing(llm.generate("hello", ENDLESS)) as outputs:
            async for _ in outputs:
                break
        await assert_nothing_held(llm)

    hosted.run(work)


def test_a_task_that_is_cancelled_gives_everything_back(hosted: Hosted) -> None:
    async def work(llm: AsyncLLM) -> None:
        begun = asyncio.Event()

        async def consume() -> None:
            async for _ in llm.generate("hello", ENDLESS):
                begun.set()

        tasks = [asyncio.create_task(consume()) for _ in range(8)]
        await begun.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        await assert_nothing_held(llm)

    hosted.run(work)


def test_abort_ends_the_iteration_with_what_there_was(hosted: Hosted) -> None:
    async def work(llm: AsyncLLM) -> None:
        tokens: list[int] = []
        async for output in llm.generate("hello", ENDLESS, "mine"):
            if not tokens:
                await llm.abort("mine")
            tokens += output.outputs[0].delta.token_ids
        assert output.finished
        assert output.request_id == "mine"
        assert output.outputs[0].finish_reason == "abort"
        assert output.outputs[0].token_ids == tokens
        assert 0 < len(tokens) < 60_000
        await assert_nothing_held(llm)

    hosted.run(work)


def test_chat_streams_the_answer_to_the_rendered_messages(hosted: Hosted) -> None:
    async def work(llm: AsyncLLM) -> None:
        messages = [{"role": "user", "content": "hello"}]
        answer = await last_of(llm.chat(messages, SHORT))
        same = await last_of(llm.generate(llm.render(messages), SHORT))
        assert answer.prompt == "<s><|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        assert answer.outputs[0].token_ids == same.outputs[0].token_ids

    hosted.run(work)


def test_errors_come_before_the_first_output(hosted: Hosted) -> None:
    async def work(llm: AsyncLLM) -> None:
        with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
            await last_of(llm.generate([1, 100_000], SHORT))
        running = asyncio.create_task(last_of(llm.generate("hello", ENDLESS, "taken")))
        while not (await llm.stats()).scheduler.running:
            await asyncio.sleep(0.01)
        with pytest.raises(InvalidRequestError, match="already"):
            await last_of(llm.generate("hello", SHORT, "taken"))
        running.cancel()
        await asyncio.wait([running])
        await assert_nothing_held(llm)

    hosted.run(work)


def test_a_long_text_is_tokenized_beside_the_loop(hosted: Hosted) -> None:
    async def work(llm: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=3, truncate_prompt_tokens=32)
        output = await last_of(llm.generate("hello there " * 3000, params))
        assert len(output.prompt_token_ids) == 32

    hosted.run(work)


def test_health_is_good_while_it_serves(hosted: Hosted) -> None:
    async def work(llm: AsyncLLM) -> None:
        await llm.check_health()

    hosted.run(work)


def test_drain_lets_requests_end_then_refuses_and_is_dead(patient_model: SmallModel, hosted: Hosted) -> None:
    unseeded = SamplingParams(max_tokens=200, ignore_eos=True)

    async def main() -> list[int]:
        llm = AsyncLLM(
            str(patient_model.directory),
            dtype="float32",
            kv_cache_dtype="float32",
            num_threads=1,
            kv_cache_bytes=16 << 20,
            seed=11,
        )
        running = asyncio.create_task(last_of(llm.generate("hello", unseeded)))  # starts the engine by itself
        while llm.state != "ready" or not llm.health().has_work:
            await asyncio.sleep(0)
        engine = llm.engine_pid
        assert engine is not None
        os.kill(engine, signal.SIGSTOP)  # so that it does not end before the drain begins
        draining = asyncio.create_task(llm.drain())
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="draining"):
            await last_of(llm.generate("late", SHORT))
        os.kill(engine, signal.SIGCONT)
        await draining
        with pytest.raises(EngineDeadError):
            await llm.check_health()
        with pytest.raises(EngineDeadError):
            await last_of(llm.generate("later", SHORT))
        await llm.close()
        tokens = (await running).outputs[0].token_ids
        assert len(asyncio.all_tasks()) == 1
        return tokens

    tokens = asyncio.run(main())
    assert len(tokens) == 200

    async def the_engines_seed_seeds_requests_without_one(llm: AsyncLLM) -> None:
        seeded = SamplingParams(max_tokens=200, ignore_eos=True, seed=Random(11).getrandbits(64))
        assert (await last_of(llm.generate("hello", seeded))).outputs[0].token_ids == tokens

    hosted.run(the_engines_seed_seeds_requests_without_one)
