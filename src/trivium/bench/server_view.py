"""What the server's own clock says of the requests that were measured, beside the client's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from trivium.bench.figures import NS_PER_MS
from trivium.bench.samples import RequestSample

FAMILIES = ("vllm:", "sglang:")  # Trivium tells its times under vLLM's names too
FIRST_TOKEN = "time_to_first_token_seconds"
MS_PER_S = 1000
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{.*\})? ([-+\d.eE]+)(?: \d+)?$", re.MULTILINE)


class Metrics(Struct, frozen=True):
    """A server's counters right before the first run and right after the last; None where it has none."""

    before: str | None = None
    after: str | None = None


class Agreement(Struct, frozen=True, kw_only=True):
    """Means over the same requests, milliseconds; the client's has the way there and back in it."""

    target: int  # which server
    what: str
    client_ms: float
    server_ms: float


def agreements(target: int, metrics: Metrics, samples: Sequence[RequestSample]) -> list[Agreement]:
    """Empty where the server tells nothing, or served others in the meantime: its means are not of our requests then."""
    done = [sample for sample in samples if sample.complete]
    if metrics.before is None or metrics.after is None or not done:
        return []
    since = _increase(_totals(metrics.before), _totals(metrics.after))
    family = next((name for name in FAMILIES if since.get(f"{name}{FIRST_TOKEN}_count") == len(done)), None)
    if family is None:
        return []
    found = []
    for what, names, client in CLOCKS:
        total_ns, count = client(done)
        served = next((f"{family}{name}" for name in names if since.get(f"{family}{name}_count")), None)
        if served is not None and count:
            server_ms = since[f"{served}_sum"] / since[f"{served}_count"] * MS_PER_S
            client_ms = total_ns / count / NS_PER_MS
            found.append(Agreement(target=target, what=what, client_ms=client_ms, server_ms=server_ms))
    return found


def _first_tokens(samples: Sequence[RequestSample]) -> tuple[int, int]:
    return sum(sample.ttft_ns for sample in samples), len(samples)


def _later_tokens(samples: Sequence[RequestSample]) -> tuple[int, int]:
    """From the first event with text to the last, and the tokens after the first."""
    seconds = sum(sample.text_ns[-1] - sample.text_ns[0] for sample in samples)
    return seconds, sum(max(sample.num_output_tokens - 1, 0) for sample in samples)


def _whole_requests(samples: Sequence[RequestSample]) -> tuple[int, int]:
    return sum(sample.e2e_ns for sample in samples), len(samples)


# What, the histograms that may hold it, and the client's (sum of nanoseconds, count).
CLOCKS: tuple[tuple[str, tuple[str, ...], Callable[[Sequence[RequestSample]], tuple[int, int]]], ...] = (
    ("TTFT", (FIRST_TOKEN,), _first_tokens),
    ("per token", ("inter_token_latency_seconds", "time_per_output_token_seconds"), _later_tokens),
    ("E2E", ("e2e_request_latency_seconds",), _whole_requests),
)


def _totals(page: str) -> dict[str, float]:
    """Each name of a Prometheus page, its values summed over all labels."""
    totals: dict[str, float] = {}
    for name, value in SAMPLE.findall(page):
        totals[name] = totals.get(name, 0.0) + float(value)
    return totals


def _increase(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
