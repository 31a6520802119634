"""Promises of the client that starts, supervises and speaks with the engine process. Real processes, real deaths."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from echo_client import echo_client, request, tokens_of
from echo_core import BAD_ADD, BAD_ROW, BAD_STEP, ENDLESS, HARD_EXIT, UNFIT_DEVICE, EchoCore, next_token

from trivium.engine.child import EngineProcess
from trivium.engine.client import EngineClient, EngineState, Supervision, ready_ended_or_silent
from trivium.types.delta import FinishReason
from trivium.types.errors import (
    EngineDeadError,
    InvalidRequestError,
    ModelFileError,
    NeverFitsError,
    OverloadedError,
    RequestFailedError,
)
from trivium.types.start_progress import StartProgress, StartStage


def with_client(work: Callable[[EngineClient], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        client = echo_client(**options)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(240):
                await client.start()
                await work(client)
        finally:
            await client.close()

    asyncio.run(main())


async def settled_stats(client: EngineClient) -> tuple[int, int, int]:
    """(running, waiting, held blocks), as of now."""
    scheduler = (await client.stats()).scheduler
    return scheduler.running, scheduler.waiting, scheduler.held_blocks


def echoed(request_id: str, index: int, num_prompt: int, count: int) -> list[int]:
    return [next_token(request_id, index, position) for position in range(num_prompt, num_prompt + count)]


# Requests


def test_many_requests_at_once_each_get_their_own_tokens() -> None:
    async def work(client: EngineClient) -> None:
        requests = [request(f"r{i}", prompt=(1,) * (1 + i % 7), max_tokens=5 + i, n=1 + i % 3) for i in range(40)]
        answers = await asyncio.gather(*[tokens_of(client, r) for r in requests])
        for r, answer in zip(requests, answers, strict=True):
            assert answer == {i: echoed(r.id, i, len(r.prompt), r.stopping.max_tokens) for i in range(r.n)}
        assert await settled_stats(client) == (0, 0, 0)

    with_client(work)


def test_a_closed_stream_frees_its_blocks_at_once() -> None:
    async def work(client: EngineClient) -> None:
        stream = await client.submit(request("r", max_tokens=ENDLESS, n=3))
        await stream.batch()
        assert (await settled_stats(client))[2] > 0
        stream.close()
        assert await settled_stats(client) == (0, 0, 0)

    with_client(work)


def test_a_cancelled_task_frees_its_blocks_at_once() -> None:
    async def work(client: EngineClient) -> None:
        for wait in (0.0, 0.001, 0.01, 0.05):
            task = asyncio.create_task(tokens_of(client, request("r", max_tokens=ENDLESS)))
            await asyncio.sleep(wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await settled_stats(client) == (0, 0, 0)

    with_client(work)


def test_leaving_the_iteration_frees_the_blocks() -> None:
    async def work(client: EngineClient) -> None:
        async for _ in await client.submit(request("r", max_tokens=ENDLESS)):
            break
        await asyncio.sleep(0.01)  # the loop closes the abandoned iterator
        assert await settled_stats(client) == (0, 0, 0)

    with_client(work)


def test_cancel_by_id_ends_the_stream_with_that_reason() -> None:
    async def work(client: EngineClient) -> None:
        stream = await client.submit(request("r", max_tokens=ENDLESS, n=2))
        await stream.batch()
        client.cancel("r")
        last = (await stream.rest())[-2:]
        assert {delta.index for delta in last} == {0, 1}
        assert {delta.finish_reason for delta in last} == {FinishReason.CANCELLED}

    with_client(work)


def test_cancelling_one_sequence_leaves_the_others() -> None:
    async def work(client: EngineClient) -> None:
        stream = await client.submit(request("r", max_tokens=30, n=2))
        first = await stream.batch()
        stream.cancel(0)
        rest = await stream.rest()
        assert all(delta.index == 1 for delta in rest)
        tokens = [token for delta in [*first, *rest] if delta.index == 1 for token in delta.tokens]
        assert tokens == echoed("r", 1, 3, 30)
        assert await settled_stats(client) == (0, 0, 0)

    with_client(work)


def test_refusals_raise_the_error_that_the_engine_raised() -> None:
    async def work(client: EngineClient) -> None:
        with pytest.raises(NeverFitsError) as never:
            await tokens_of(client, request("r", prompt=(1,) * 500, max_tokens=EchoCore.max_model_len))
        told = (never.value.num_prompt_tokens, never.value.num_new_tokens, never.value.limit)
        assert told == (500, EchoCore.max_model_len, EchoCore.max_model_len)
        with pytest.raises(InvalidRequestError, match="no tokens"):
            await tokens_of(client, request("r", prompt=()))
        with pytest.raises(RequestFailedError, match="unforeseen"):
            await tokens_of(client, request("r", prompt=(BAD_ADD,)))
        assert await tokens_of(client, request("r")) == {0: echoed("r", 0, 3, 20)}

    with_client(work)


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    async def work(client: EngineClient) -> None:
        streams = [await client.submit(request(f"r{i}", max_tokens=300)) for i in range(30)]
        results = await asyncio.gather(*[stream.batch() for stream in streams], return_exceptions=True)
        refused = [result for result in results if isinstance(result, OverloadedError)]
        assert refused
        assert all(error.retry_after >= 0 for error in refused)
        for stream in streams:
            stream.close()
        assert await settled_stats(client) == (0, 0, 0)

    with_client(work, max_waiting=4)


def test_one_rows_failure_is_its_own() -> None:
    async def work(client: EngineClient) -> None:
        good = asyncio.create_task(tokens_of(client, request("good")))
        deltas = await (await client.submit(request("bad", prompt=(BAD_ROW,)))).rest()
        assert deltas[-1].finish_reason is FinishReason.ERROR
        assert deltas[-1].error == "logits are not numbers"
        assert await good == {0: echoed("good", 0, 3, 20)}

    with_client(work)


def test_an_id_in_use_is_refused_and_one_just_given_up_can_be_used_again() -> None:
    async def work(client: EngineClient) -> None:
        stream = await client.submit(request("r", max_tokens=ENDLESS))
        with pytest.raises(InvalidRequestError, match="already"):
            await client.submit(request("r"))
        stream.close()
        assert await tokens_of(client, request("r")) == {0: echoed("r", 0, 3, 20)}

    with_client(work)


# Deaths


def test_requests_of_a_killed_engine_end_with_a_typed_error_and_new_ones_are_answered() -> None:
    async def work(client: EngineClient) -> None:
        old_pid = client.pid
        running = [asyncio.create_task(tokens_of(client, request(f"r{i}", max_tokens=ENDLESS))) for i in range(12)]
        asked = asyncio.create_task(client.stats())
        await asyncio.sleep(0.05)
        await asked
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        for task in running:
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await task
        assert await tokens_of(client, request("r0")) == {0: echoed("r0", 0, 3, 20)}
        assert client.state is EngineState.READY
        assert client.num_restarts == 1
        assert client.pid != old_pid
        assert await settled_stats(client) == (0, 0, 0)

    with_client(work)


def test_a_failed_step_ends_its_requests_with_the_reason_and_the_engine_comes_back() -> None:
    async def work(client: EngineClient) -> None:
        with pytest.raises(EngineDeadError, match="the device is on fire"):
            await tokens_of(client, request("r", prompt=(BAD_STEP,)))
        assert await tokens_of(client, request("r")) == {0: echoed("r", 0, 3, 20)}

    with_client(work)


def test_whoever_comes_while_a_dead_process_is_cleared_away_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clearing, cleared = asyncio.Event(), asyncio.Event()
    end = EngineProcess.end

    async def end_when_told(process: EngineProcess, timeout: float) -> None:
        clearing.set()
        await cleared.wait()
        await end(process, timeout)

    async def work(client: EngineClient) -> None:
        monkeypatch.setattr(EngineProcess, "end", end_when_told)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        await clearing.wait()
        answer = asyncio.create_task(tokens_of(client, request("late")))
        asked = asyncio.create_task(client.stats())
        await asyncio.sleep(0)
        cleared.set()
        assert await answer == {0: echoed("late", 0, 3, 20)}
        await asked

    with_client(work)


def test_a_device_that_no_process_can_use_is_not_tried_again() -> None:
    async def work(client: EngineClient) -> None:
        with pytest.raises(EngineDeadError, match="the memory is broken"):
            await tokens_of(client, request("r", prompt=(UNFIT_DEVICE,)))
        with pytest.raises(EngineDeadError, match="the memory is broken"):
            await client.submit(request("s"))
        assert (client.state, client.num_restarts) == (EngineState.DEAD, 0)

    with_client(work)


def test_an_engine_that_keeps_dying_is_given_up_and_until_then_started_again_at_once() -> None:
    async def work(client: EngineClient) -> None:
        for _ in range(3):
            with pytest.raises(EngineDeadError, match="exit code 9"):
                await tokens_of(client, request("r", prompt=(HARD_EXIT,)))
        assert client.state is EngineState.DEAD
        assert client.num_restarts == 2
        with pytest.raises(EngineDeadError, match="exit code 9"):
            await client.submit(request("r"))

    with_client(work, supervision=Supervision(max_restarts=2, first_backoff=1000.0))


def test_a_machine_that_can_start_nothing_for_five_seconds_does_not_lose_the_engine_for_good() -> None:
    supervision = Supervision()
    num_failed_starts = supervision.max_restarts - 1  # after a death; one more is for good
    assert sum(supervision.backoff(number) for number in range(1, num_failed_starts + 1)) > 5.0


def test_what_keeps_the_engine_from_starting_is_raised_by_start() -> None:
    async def main(model: str) -> EngineState:
        client = echo_client(model)
        try:
            await client.start()
        finally:
            await client.close()
        return client.state

    with pytest.raises(ModelFileError, match="there is no model called 'missing'"):
        asyncio.run(main("missing"))
    with pytest.raises(EngineDeadError, match="ZeroDivisionError: nobody foresaw this"):
        asyncio.run(main("broken"))


def test_an_engine_that_is_not_ready_in_time_is_given_up() -> None:
    async def main() -> None:
        client = echo_client(supervision=Supervision(start_timeout=0.001))
        with pytest.raises(EngineDeadError, match=r"no news for 0\.001 seconds \(importing libraries\)"):
            await client.start()
        await client.close()

    asyncio.run(main())


def test_a_start_that_takes_long_says_how_far_it_is(tmp_path: Path) -> None:
    weights = tmp_path / "weights.held"

    async def main() -> None:
        client = echo_client(str(weights))
        starting = asyncio.create_task(client.start())
        while str(client.start_progress) != "reading weights: 3.00 of 16.00 GB":
            assert not starting.done()
            await asyncio.sleep(0.01)
        weights.touch()
        await starting
        assert client.start_progress is None
        await client.close()

    asyncio.run(main())


def test_a_start_is_given_up_only_when_it_gives_no_more_news() -> None:
    class Child:
        """Has gone on at each of the first looks."""

        def __init__(self, num_news: int) -> None:
            self.ready = self.ended = asyncio.get_running_loop().create_future()
            self.num_looks = 0
            self._num_news = num_news

        @property
        def progress(self) -> StartProgress:
            self.num_looks += 1
            return StartProgress(StartStage.WEIGHTS, min(self.num_looks, self._num_news), self._num_news)

    async def main() -> None:
        child = Child(num_news=8)
        await ready_ended_or_silent(child, timeout=0.001)  # type: ignore[arg-type]
        assert child.num_looks > 8

    asyncio.run(main())


def test_an_engine_that_stands_still_is_not_healthy_and_one_that_goes_on_is() -> None:
    async def work(client: EngineClient) -> None:
        await client.stats()
        assert not client.health().stalled
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        while not client.health().stalled:
            await asyncio.sleep(0.01)
        os.kill(client.pid, signal.SIGCONT)
        while client.health().stalled:
            await asyncio.sleep(0.05)
        assert client.num_restarts == 0

    with_client(work, stall_seconds=2.5)


def test_an_engine_that_does_not_go_on_is_ended_and_started_again() -> None:
    async def work(client: EngineClient) -> None:
        stopped = client.pid
        assert stopped is not None
        stream = await client.submit(request("r", max_tokens=ENDLESS))
        await stream.batch()
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(EngineDeadError, match="made no progress for"):
            while await stream.batch():
                pass
        assert await tokens_of(client, request("after", max_tokens=3))
        assert client.num_restarts == 1 and client.pid != stopped

    with_client(work, stall_seconds=1.0)


def test_without_a_watchdog_an_engine_may_stand_still() -> None:
    async def work(client: EngineClient) -> None:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        await asyncio.sleep(3.5)
        os.kill(client.pid, signal.SIGCONT)
        assert await tokens_of(client, request("r", max_tokens=3)) and client.num_restarts == 0

    with_client(work, stall_seconds=0)


def test_all_of_it_works_on_uvloop_too() -> None:
    async def main() -> None:
        client = echo_client()
        await client.start()
        running = await client.submit(request("r", max_tokens=ENDLESS))
        await running.batch()
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await running.rest()
        answers = await asyncio.gather(*[tokens_of(client, request(f"r{i}")) for i in range(20)])
        assert answers == [{0: echoed(f"r{i}", 0, 3, 20)} for i in range(20)]
        await client.drain()

    uvloop.run(main())


# The end


def test_drain_lets_requests_end_and_refuses_new_ones() -> None:
    async def work(client: EngineClient) -> None:
        running = asyncio.create_task(tokens_of(client, request("r", max_tokens=100)))
        await asyncio.sleep(0.02)
        draining = asyncio.create_task(client.drain())
        await asyncio.sleep(0)
        assert client.state is EngineState.DRAINING
        with pytest.raises(OverloadedError, match="draining"):
            await client.submit(request("late"))
        await draining
        assert await running == {0: echoed("r", 0, 3, 100)}
        assert client.state is EngineState.DEAD
        assert client.num_restarts == 0

    with_client(work)


def test_drain_cancels_what_does_not_end_in_time() -> None:
    async def work(client: EngineClient) -> None:
        stream = await client.submit(request("r", max_tokens=ENDLESS))
        await stream.batch()
        await client.drain(timeout=0.05)
        assert (await stream.rest())[-1].finish_reason is FinishReason.CANCELLED

    with_client(work)


def test_close_ends_running_requests_with_an_error() -> None:
    async def work(client: EngineClient) -> None:
        running = asyncio.create_task(tokens_of(client, request("r", max_tokens=ENDLESS)))
        await asyncio.sleep(0.02)
        await client.close()
        with pytest.raises(EngineDeadError, match="closed"):
            await running

    with_client(work)


def traces(directory: Path) -> dict[str, int]:
    children = Path("/proc/self/task").glob("*/children")
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "system threads": len(os.listdir("/proc/self/task")),
        "threads": threading.active_count(),
        "children": sum(len(file.read_text().split()) for file in children),
        "files": len(list(directory.iterdir())),
    }


def test_nothing_is_left_after_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main() -> int:
        async def life(end: Callable[[EngineClient], Awaitable[None]]) -> None:
            client = echo_client()
            await client.start()
            assert client.pid is not None
            await asyncio.gather(*[tokens_of(client, request(f"r{i}", max_tokens=5)) for i in range(5)])
            running = await client.submit(request("r", max_tokens=ENDLESS))
            os.kill(client.pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError):
                await running.rest()
            await tokens_of(client, request("again"))
            await end(client)

        await life(EngineClient.close)
        await life(EngineClient.drain)
        broken = echo_client("missing")
        with pytest.raises(ModelFileError):
            await broken.start()
        await broken.close()
        return len(asyncio.all_tasks())

    asyncio.run(asyncio.sleep(0))
    gc.collect()  # what other tests left, which would go at any moment
    before = traces(tmp_path)
    assert asyncio.run(main()) == 1  # `main` itself
    give_up = time.monotonic() + 120
    while traces(tmp_path) != before and time.monotonic() < give_up:
        time.sleep(0.01)  # a thread that was joined is still listed by the kernel for a moment
    assert traces(tmp_path) == before


def test_a_loop_that_ends_without_close_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main() -> int | None:
        client = echo_client()
        await client.start()
        return client.pid

    pid = asyncio.run(main())
    assert not Path(f"/proc/{pid}").exists()
    assert list(tmp_path.iterdir()) == []
