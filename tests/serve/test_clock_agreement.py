"""The server's times are those that a client's own clock shows: of each request in its account, and of all in the histograms.
`make test-soak`; CLOCK_REQUESTS says how many at each load. It holds for a machine that is not busy with anything else."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterator

import pytest
from clock_client import Seen, watch
from server_process import ServerProcess

CLOCK_REQUESTS = int(os.environ.get("CLOCK_REQUESTS", "150"))
SHARE, SECONDS = 0.02, 0.002  # they may differ by the larger of the two
# Of requests, each; the others met a client or a server that the machine had stopped for a moment.
MOST = 0.95
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "while",
    "rain",
    "fell",
    "over",
    "hills",
    "and",
    "old",
    "stones",
    "near",
    "quiet",
    "rivers",
]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300 + 20 * CLOCK_REQUESTS)]


@pytest.fixture(scope="module")
def smollm2() -> Iterator[ServerProcess]:
    process = ServerProcess("smollm2")
    watch(
        process.port, bodies(0)[:4], 2, 120
    )  # what is done once, at the first requests, holds up those that come with them
    yield process
    assert process.stop() == 0


def bodies(seed: int) -> list[dict[str, object]]:
    """Of mixed lengths, and none begins like another."""
    rng = random.Random(seed)
    asked = []
    for _ in range(CLOCK_REQUESTS):
        text = " ".join(rng.choices(WORDS, k=rng.choice((5, 40, 120, 300))))
        asked.append(
            {
                "model": "smollm2",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": rng.choice((4, 16, 48)),
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                "include_metrics": True,
            }
        )
    return asked


def agree(client: float, server: float) -> bool:
    return abs(client - server) <= max(SHARE * client, SECONDS)


@pytest.mark.parametrize(("load", "concurrency"), [("low", 1), ("moderate", 4)])
def test_the_server_and_a_client_see_the_same_times(smollm2: ServerProcess, load: str, concurrency: int) -> None:
    before = smollm2.wait_until_idle()
    seen = watch(smollm2.port, bodies(concurrency), concurrency, 200 + 20 * CLOCK_REQUESTS)
    after = smollm2.wait_until_idle()
    assert len(seen) == CLOCK_REQUESTS
    for what, name in (
        ("time_to_first_token", "trivium_time_to_first_token_seconds"),
        ("inter_token_latency", "trivium_inter_token_seconds"),
    ):
        pairs = [(getattr(one, what), one.end["metrics"][what]) for one in seen]
        kept = [smollm2.get(f"/v1/requests/{one.request_id}").json()["account"][what] for one in seen]
        assert kept == [server for _, server in pairs], "an answer and the server's record say the same"
        apart = sorted(abs(client - server) for client, server in pairs)
        within = sum(agree(client, server) for client, server in pairs) / len(pairs)
        sums, counts = (after[f"{name}_{part}"] - before[f"{name}_{part}"] for part in ("sum", "count"))
        client_mean = _mean(seen, what)
        print(
            f"\nclocks, {load} load: {what} of {len(pairs)} requests: client {client_mean * 1e3:.2f} ms, server"
            f" {sums / counts * 1e3:.2f} ms in the mean; apart by {statistics.median(apart) * 1e3:.2f} ms (median),"
            f" {apart[int(0.95 * len(apart))] * 1e3:.2f} ms (p95), {apart[-1] * 1e3:.2f} ms (most); {within:.1%} within bounds"
        )
        assert agree(client_mean, sums / counts)
        assert within >= MOST


def _mean(seen: list[Seen], what: str) -> float:
    """As a histogram has it: over first tokens, or over all others."""
    if what == "time_to_first_token":
        return statistics.mean(one.time_to_first_token for one in seen)
    tokens = [one.end["usage"]["completion_tokens"] - 1 for one in seen]
    waits = [one.inter_token_latency * count for one, count in zip(seen, tokens, strict=True)]
    return sum(waits) / sum(tokens)
