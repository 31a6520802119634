"""What a server must bear for long, with figures: mixed load, and an engine that is killed again and again. `make test-soak`;
SOAK_SECONDS and KILLS say how long. Figures hold for a machine that is not busy with anything else."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import fault_traffic
import httpx
import pytest
from fault_traffic import MIXED, FailedError, Traffic
from server_process import ServerProcess, wait_for
from tiny_model import MODEL

SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
KILLS = int(os.environ.get("KILLS", "50"))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300 + 2 * SOAK_SECONDS + 30 * KILLS)]

MIB = 1 << 20
CACHE = 8 * MIB  # full of old prefixes before a third of the soak is over; what grows after that is none of it
GROWTH = 12 * MIB  # of both processes together, from the first third of the soak to its end
MORE_DESCRIPTORS = 8  # than at the beginning, once all is quiet
NOTICED_SECONDS = 2.0
RESTARTS_A_MINUTE = 5  # more deaths than that are for good

BAD = (
    b"{",
    b'{"model": "nobody", "prompt": "Hi"}',
    b'{"prompt": "Hi", "temperature": -1}',
    b'{"prompt": "Hi", "max_tokens": 1000000}',
    b'{"prompt": [99999999]}',
    b'{"prompt": "Hi", "n": 100000}',
)


def memory(*pids: int) -> int:
    """Bytes that no other process shares."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def descriptors(*pids: int) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def family_of(pid: int) -> set[int]:
    """The process, its children, and theirs."""
    family = {pid}
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            family.update(*(family_of(int(child)) for child in path.read_text().split()))
    return family


def test_mixed_load_for_long_leaves_a_server_as_it_was(tiny_model: Path) -> None:
    options = ["--max-num-batched-tokens", "256", "--kv-cache-bytes", str(CACHE)]
    server = ServerProcess(str(tiny_model), "--served-model-name", MODEL, *options)
    try:
        engine = server.engine_pid
        pids = (server.process.pid, engine)
        expected = [outcome.answer for outcome in fault_traffic.send(server, 0)]
        server.wait_until_idle()
        descriptors_before = descriptors(*pids)
        used: list[int] = []
        ends = time.monotonic() + SOAK_SECONDS
        num_answers = 0
        for number in itertools.count(1):
            for bad in BAD:
                answer = httpx.post(
                    f"{server.url}/v1/completions",
                    content=bad,
                    headers={"content-type": "application/json"},
                    timeout=60,
                )
                assert 400 <= answer.status_code < 500, answer.text
            outcomes = fault_traffic.send(server, number, MIXED * 2)
            assert [outcome.failure for outcome in outcomes] == [None] * len(outcomes)
            assert [outcome.answer for outcome in outcomes] == expected * 2
            num_answers += len(outcomes)
            used.append(memory(*pids))
            if time.monotonic() > ends:
                break
        server.wait_until_idle()
        third = used[len(used) // 3]
        print(
            f"\nsoak: {SOAK_SECONDS:.0f} s, {num_answers} answers, {number * len(BAD)} refused; memory {third / MIB:.0f} MiB"
            f" after a third, {used[-1] / MIB:.0f} MiB at the end; descriptors {descriptors_before} -> {descriptors(*pids)}"
        )
        assert server.process.poll() is None and server.engine_pid == engine
        assert used[-1] - third <= GROWTH
        assert descriptors(*pids) <= descriptors_before + MORE_DESCRIPTORS
    finally:
        assert server.stop() == 0


def test_an_engine_killed_under_load_is_noticed_told_and_replaced(tiny_model: Path, tmp_path: Path) -> None:
    """Those whose answer is whole have every token once; nothing of a killed engine is left."""
    began = time.monotonic()
    server = ServerProcess(str(tiny_model), "--served-model-name", MODEL, environment={"TMPDIR": str(tmp_path)})
    start_seconds = time.monotonic() - began
    noticed: list[float] = []
    ready: list[float] = []
    ends: Counter[str] = Counter()
    deaths: deque[float] = deque(maxlen=RESTARTS_A_MINUTE)
    try:
        expected = [outcome.answer for outcome in fault_traffic.send(server, 0, ("stream", "stream", "form"))]
        for number in range(KILLS):
            if len(deaths) == RESTARTS_A_MINUTE:
                time.sleep(max(0.0, deaths[0] + 61 - time.monotonic()))
            engine = server.engine_pid
            family = family_of(engine)
            killed_at = asyncio.run(_kill_under_load(server, engine, number, expected, noticed, ends))
            wait_for(lambda engine=engine: has_another_engine(server, engine) or None, 120)  # type: ignore[misc]
            deaths.append(time.monotonic())  # the server may have noticed long after it was killed
            ready.append(deaths[-1] - killed_at)
            server.wait_until_idle()
            wait_for(lambda family=family: not any(map(is_alive, family)) or None)  # type: ignore[misc]
            assert [
                outcome.answer for outcome in fault_traffic.send(server, 0, ("stream", "stream", "form"))
            ] == expected
        print(
            f"\nkills: {KILLS}; noticed after {max(noticed, default=0):.2f} s at most; ready again after"
            f" {statistics.median(ready):.2f} s (median), {max(ready):.2f} s (most), first start of server and engine"
            f" {start_seconds:.2f} s; ends {dict(ends)}"
        )
        assert not list(tmp_path.glob("trivium-*/engine"))
        assert max(noticed, default=0) <= NOTICED_SECONDS
        assert max(ready) <= 1.2 * start_seconds
    finally:
        assert server.stop() == 0
    assert not list(tmp_path.iterdir())


async def _kill_under_load(
    server: ServerProcess, engine: int, number: int, expected: list[object], noticed: list[float], ends: Counter[str]
) -> float:
    killed_at = 0.0

    async def one(ask: Callable[[], Awaitable[object]], answer: object) -> None:
        try:
            assert await ask() == answer, "a token was lost or came twice"
            ends["whole"] += 1
        except FailedError as failure:
            assert failure.code == "engine_dead", failure
            noticed.append(time.monotonic() - killed_at)
            ends["engine_dead"] += 1

    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        traffic = Traffic(http, 1000 + number)
        async with asyncio.TaskGroup() as group:
            for place in range(12):
                group.create_task(one(lambda place=place: traffic.stream(place % 2), expected[place % 2]))  # type: ignore[misc]
            group.create_task(one(traffic.form, expected[2]))
            await asyncio.sleep(0.02 + 0.013 * (number % 17))  # in every phase of their lives
            os.kill(engine, signal.SIGKILL)
            killed_at = time.monotonic()
    return killed_at


def has_another_engine(server: ServerProcess, engine: int) -> bool:
    """Which answers. Where nobody was in the engine when it was killed, the server may not know of it yet."""
    try:
        return server.engine_pid != engine and server.get("/health").status_code == 200
    except ValueError:  # there is none at the moment
        return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
