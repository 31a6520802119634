"""One batch, run against an application that answers as the test wants: real records, no engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trivium.records.batches import BatchRecord, BatchStatus
from trivium.records.records import Records
from trivium.records.viewer import Viewer
from trivium.serve.access.allowance import Rates
from trivium.serve.access.caller import asking
from trivium.serve.access.keyring import Keyring
from trivium.serve.access.keys import Key, digest_of
from trivium.serve.batch.run import BatchRun, BatchTools
from trivium.serve.batch.runner import BatchRunner
from trivium.serve.batch.slots import Slots
from trivium.serve.in_process import InProcess
from trivium.serve.limits import Limits
from trivium.types.errors import RateLimitedError
from trivium.types.request import BACKGROUND_PRIORITY

URL = "/v1/completions"
OWNER = Viewer("night", sees_all=False)
OK = (200, {"usage": {"prompt_tokens": 2, "completion_tokens": 3}})
ENGINE_DIED = (503, {"error": {"code": "engine_dead"}})

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


class App:
    """Answers each request's body by a function, and remembers what was asked and how many at once. Requests beyond the first
    `at_first` wait until it is `released`."""

    def __init__(self, answer: Answer, pause: float = 0.0, at_first: int = 10**6) -> None:
        self._answer = answer
        self._pause = pause
        self._at_first = at_first
        self.released = asyncio.Event()
        self.asked: list[dict[str, Any]] = []
        self._running = 0
        self.most_at_once = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        assert scope["path"] == URL
        self.asked.append(body)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            await asyncio.sleep(self._pause)
            if len(self.asked) > self._at_first:
                await self.released.wait()
        finally:
            self._running -= 1
        status, answer = self._answer(body)
        headers = [(b"x-request-id", b"req_1"), (b"retry-after", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    records = Records.open(tmp_path / "state", max_file_bytes=10**9)
    yield records
    records.close()


async def add_batch(records: Records, prompts: list[str], seconds: float = 3600) -> str:
    lines = [{"custom_id": f"{n}", "url": URL, "body": {"prompt": prompt}} for n, prompt in enumerate(prompts)]
    incoming = records.files.incoming()
    incoming.write("\n".join(map(json.dumps, lines)).encode())
    file = await records.files.keep(incoming, "in", "batch", None)
    batch = BatchRecord(
        id=f"batch_{file.id}",
        created_at=int(time.time()),
        endpoint=URL,
        model="tiny",
        input_file_id=file.id,
        completion_window="24h",
        expires_at=int(time.time() + seconds),
        output_seconds=3600,
    )
    records.blobs.link(file.id, batch.id)
    await records.batches.seen_by(OWNER).add(batch)
    return batch.id


def tools_for(records: Records, app: App, at_once: int, rates: Rates | None = None) -> BatchTools:
    keys = [Key(name=OWNER.name, digest=digest_of("secret"), rates=rates or Rates())]
    return BatchTools(records, InProcess(app), Limits(), Slots(at_once), Keyring(keys))


async def run(
    records: Records, app: App, prompts: list[str], at_once: int = 4, rates: Rates | None = None, **options: Any
) -> BatchRecord:
    batch_id = await add_batch(records, prompts, **options)
    await asyncio.wait_for(BatchRun(tools_for(records, app, at_once, rates), batch_id, 0).to_its_end(), 30)
    batch = await records.batches.get(batch_id)
    assert batch is not None
    return batch


async def lines_of(records: Records, file_id: str | None) -> dict[str, Any]:
    """By custom id; each must be there once."""
    if file_id is None:
        return {}
    file = await records.files.get(file_id)
    assert file is not None
    lines = [json.loads(line) for line in records.files.path(file).read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def test_requests_are_background_and_so_many_at_once(records: Records) -> None:
    app = App(lambda body: OK, pause=0.005)

    async def story() -> None:
        batch = await run(records, app, [f"prompt {n}" for n in range(20)], at_once=3)
        assert (batch.status, batch.completed) == (BatchStatus.COMPLETED, 20)
        assert (batch.input_tokens, batch.output_tokens) == (40, 60)
        assert len(await lines_of(records, batch.output_file_id)) == 20

    asyncio.run(story())
    assert app.most_at_once == 3
    assert {body["priority"] for body in app.asked} == {BACKGROUND_PRIORITY}


def test_no_more_run_at_once_than_their_owner_may_have(records: Records) -> None:
    app = App(lambda body: OK, pause=0.005)
    batch = asyncio.run(run(records, app, [str(n) for n in range(6)], rates=Rates(concurrent_requests=2)))
    assert (batch.status, batch.completed) == (BatchStatus.COMPLETED, 6)
    assert app.most_at_once == 2


def test_a_batch_uses_its_owners_tokens_and_waits_when_they_are_used_up(records: Records) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        asking().charge(100_000)  # at 60 a minute: more than a day's
        return OK

    app = App(answer)

    async def story() -> None:
        tools = tools_for(records, app, 4, Rates(tokens_per_minute=60))
        batch_id = await add_batch(records, ["a"] * 4)
        run = BatchRun(tools, batch_id, 0)
        running = asyncio.create_task(run.to_its_end())
        while (batch := await records.batches.get(batch_id)) and batch.completed < 1:
            await asyncio.sleep(0.005)
        owner = tools.keyring.caller_of(["secret"])
        assert owner is not None
        with pytest.raises(RateLimitedError, match="60 tokens a minute"), owner.request():
            pass
        run.cancelled.set()
        await running
        batch = await records.batches.get(batch_id)
        assert batch is not None and (batch.status, batch.completed) == (BatchStatus.CANCELLED, 1)

    asyncio.run(asyncio.wait_for(story(), 30))
    assert len(app.asked) == 1


def test_prompts_that_begin_alike_run_one_after_the_other(records: Records) -> None:
    app = App(lambda body: OK)
    beginnings = ["a" * 600, "b" * 600, "c" * 600]
    asyncio.run(run(records, app, [beginnings[n % 3] + str(n) for n in range(30)], at_once=1))
    order = [body["prompt"][0] for body in app.asked]
    assert sum(before != after for before, after in itertools.pairwise(order)) == 2


def test_a_refusal_for_now_is_tried_again(records: Records) -> None:
    tries: Counter[str] = Counter()

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        tries[body["prompt"]] += 1
        if tries[body["prompt"]] == 1:
            return 429, {"error": {"code": "queue_full"}}
        return OK if tries[body["prompt"]] > 2 else (503, {"error": {"code": "engine_not_ready"}})

    async def story() -> None:
        batch = await run(records, App(answer), ["a", "b"])
        assert (batch.completed, batch.failed) == (2, 0)

    asyncio.run(story())
    assert set(tries.values()) == {3}


def test_a_request_that_kills_the_engine_is_found_and_its_neighbours_are_answered(records: Records) -> None:
    """The poison takes with it whatever runs beside it; alone, it takes itself only."""
    dying = asyncio.Event()

    class Engine(App):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            nonlocal dying
            death = dying
            body = json.loads((await receive())["body"])
            self.asked.append(body)
            if body["prompt"] == "poison":
                await asyncio.sleep(0.01)
                death.set()
                dying = asyncio.Event()
            else:
                await asyncio.wait([asyncio.create_task(death.wait())], timeout=0.02)
            status, answer = ENGINE_DIED if death.is_set() else OK
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    app = Engine(lambda body: OK)

    async def story() -> None:
        batch = await run(records, app, ["a", "b", "poison", "c", "d", "e"], at_once=4)
        assert (batch.status, batch.completed, batch.failed) == (BatchStatus.COMPLETED, 5, 1)
        assert set(await lines_of(records, batch.output_file_id)) == {"0", "1", "3", "4", "5"}
        (line,) = (await lines_of(records, batch.error_file_id)).values()
        assert (line["custom_id"], line["error"]["code"]) == ("2", "engine_dead")

    asyncio.run(story())
    assert Counter(body["prompt"] for body in app.asked)["poison"] == 2


def test_a_batch_past_its_window_expires_with_what_it_has(records: Records) -> None:
    app = App(lambda body: OK, at_first=3)

    async def story() -> None:
        batch = await run(records, app, [f"{n}" for n in range(200)], at_once=1, seconds=5)
        assert batch.status is BatchStatus.EXPIRED and batch.expired_at is not None
        answered, rest = await lines_of(records, batch.output_file_id), await lines_of(records, batch.error_file_id)
        assert len(answered) == batch.completed == 3
        assert len(answered) + len(rest) == 200
        assert {line["error"]["code"] for line in rest.values()} == {"batch_expired"}

    asyncio.run(story())


def test_a_runner_takes_up_where_another_was_cut_off_and_asks_nothing_twice(records: Records) -> None:
    app = App(lambda body: OK, at_first=20)

    async def story() -> None:
        batch_id = await add_batch(records, [f"{n}" for n in range(60)])

        async def status() -> BatchRecord:
            batch = await records.batches.get(batch_id)
            assert batch is not None
            return batch

        def runner() -> asyncio.Task[None]:
            return asyncio.create_task(BatchRunner(tools_for(records, app, 2), "tiny", asyncio.Event()).run())

        first = runner()
        while (await status()).completed < 10:
            await asyncio.sleep(0.005)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        answered = (await status()).completed
        assert (await status()).status is BatchStatus.IN_PROGRESS and 10 <= answered <= 20
        app.released.set()
        second, third = runner(), runner()  # of which one runs the batch
        while (await status()).status is not BatchStatus.COMPLETED:
            await asyncio.sleep(0.005)
        for task in (second, third):
            task.cancel()
        await asyncio.gather(second, third, return_exceptions=True)
        batch = await status()
        assert (batch.completed, batch.failed) == (60, 0)
        assert len(await lines_of(records, batch.output_file_id)) == 60

    asyncio.run(story())
    assert len(app.asked) <= 60 + 2, "only what was under way at the cut is asked again"


def test_a_cancelled_batch_stops_what_is_under_way(records: Records) -> None:
    app = App(lambda body: OK, pause=3600)

    async def story() -> None:
        batch_id = await add_batch(records, ["a", "b", "c"])
        news = asyncio.Event()
        running = asyncio.create_task(BatchRunner(tools_for(records, app, 2), "tiny", news).run())
        while len(app.asked) < 2:
            await asyncio.sleep(0.005)
        await records.batches.cancel(batch_id)
        news.set()
        while (batch := await records.batches.get(batch_id)) and batch.status is not BatchStatus.CANCELLED:
            await asyncio.sleep(0.005)
        assert batch is not None and batch.output_file_id is None
        assert len(await lines_of(records, batch.error_file_id)) == 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 30))
