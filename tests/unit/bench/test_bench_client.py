"""What the client makes of servers that answer rightly, and of those that do not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
import uvloop
from fake_peer import NUM_PIECES, FakePeer, fake_peer

from trivium.bench.client import AnswerSettings, OpenAIClient, PlannedRequest, served_models
from trivium.bench.errors import BenchError
from trivium.bench.event_stream import EventSplitter
from trivium.bench.figures import run_figures
from trivium.bench.http_client import HttpClient, Origin
from trivium.bench.load import closed_loop, open_loop
from trivium.bench.samples import Outcome, RequestSample

T = TypeVar("T")
GAP = 0.05
MS = 1_000_000


class Nobody:
    def sent(self) -> None: ...

    def ended(self, sample: RequestSample) -> None: ...


def run_as_the_command_does(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def plan(count: int, every_ms: float = 0) -> list[PlannedRequest]:
    return [PlannedRequest(index, round(index * every_ms * MS), f"words {index}", 12, 6) for index in range(count)]


def client_of(url: str, **settings: object) -> OpenAIClient:
    return OpenAIClient(HttpClient(Origin.parse(url), "secret"), AnswerSettings("fake", **settings))  # type: ignore[arg-type]


def ask(behaviour: str, count: int = 1, gap: float = 0.0, **settings: object) -> tuple[list[RequestSample], FakePeer]:
    async def run() -> tuple[list[RequestSample], FakePeer]:
        async with fake_peer(behaviour, gap=gap) as peer:
            return await closed_loop(client_of(peer.url, **settings), plan(count), 0, 1, Nobody()), peer

    return run_as_the_command_does(run())


@pytest.mark.parametrize("behaviour", ["right", "bytewise", "until close"])
def test_an_answer_is_counted_however_its_bytes_come(behaviour: str) -> None:
    ((sample,), _) = ask(behaviour)
    assert sample.outcome is Outcome.COMPLETE, sample.detail
    assert len(sample.text_ns) == NUM_PIECES
    assert (sample.prompt_tokens, sample.output_tokens, sample.cached_tokens) == (12, 6, 4)
    assert sample.scheduled_ns <= sample.sent_ns <= sample.text_ns[0] <= sample.ended_ns


def test_pieces_have_the_times_at_which_they_came() -> None:
    ((sample,), _) = ask("right", gap=GAP)
    waits = [(at - sample.sent_ns) / 1e9 for at in (*sample.text_ns, sample.ended_ns)]
    # A comment and the role come before the text; its end and the counts after it. None can come before its time.
    assert all(wait >= 0.99 * GAP * place for wait, place in zip(waits, (3, 4, 5, 8), strict=True))


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ("status 429", "http 429"),
        ("status 500", "http 500"),
        ("closed", "reset"),
        ("reset", "reset"),
        ("reset in stream", "cut"),
        ("not http", "malformed"),
        ("hang", "timeout"),
        ("hang in stream", "timeout"),
        ("cut", "cut"),
        ("no done", "cut"),
        ("error in stream", "stream error"),
        ("not json", "malformed"),
    ],
)
def test_each_way_to_fail_is_told_from_the_others(behaviour: str, kind: str) -> None:
    samples, _ = ask(behaviour, count=2, timeout=0.3 if kind == "timeout" else 60.0)
    figures = run_figures(samples, scheduled=False, slo=None)
    assert (figures.requests, figures.completed, figures.failures) == (2, 0, {kind: 2})
    assert all(sample.detail and sample.ended_ns >= sample.sent_ns for sample in samples)


def test_no_server_is_a_refusal() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        (sample,) = run_as_the_command_does(closed_loop(client_of(url), plan(1), 0, 1, Nobody()))
    assert sample.failure == "refused"


def test_an_answer_without_text_has_its_end_for_its_first_token() -> None:
    ((sample,), _) = ask("silent")
    assert sample.complete and len(sample.text_ns) == 1


def test_a_server_that_does_not_count_leaves_the_counts_open() -> None:
    ((sample,), _) = ask("no usage")
    assert (sample.prompt_tokens, sample.output_tokens, sample.num_output_tokens) == (None, None, NUM_PIECES)


def test_connections_are_used_again() -> None:
    samples, peer = ask("right", count=5)
    assert all(sample.complete for sample in samples)
    assert peer.connections == 1


def test_a_kept_connection_that_the_server_closed_is_no_failure_of_the_next_request() -> None:
    samples, peer = ask("right, then closed", count=3)
    assert all(sample.complete for sample in samples)
    assert peer.connections == 3


def test_a_kept_connection_that_was_reset_meanwhile_is_not_used() -> None:
    async def run() -> list[RequestSample]:
        async with fake_peer("right, then reset", "right") as peer:
            client = client_of(peer.url)
            first = await closed_loop(client, plan(1), 0, 1, Nobody())
            await asyncio.sleep(0.2)  # the reset arrives while nobody waits for anything
            return first + await closed_loop(client, plan(1), 0, 1, Nobody())

    assert all(sample.complete for sample in run_as_the_command_does(run()))


def test_the_request_is_what_an_openai_server_expects() -> None:
    _, peer = ask("right", ignore_eos=False)
    head, _, body = peer.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret" in head
    sent = json.loads(body)
    assert sent["messages"] == [{"role": "user", "content": "words 0"}] and "ignore_eos" not in sent
    assert (sent["stream"], sent["max_tokens"], sent["stream_options"]) == (True, 6, {"include_usage": True})
    _, peer = ask("right", endpoint="completions")
    assert peer.requests[0].startswith(b"POST /v1/completions") and b'"ignore_eos":true' in peer.requests[0]


def test_an_open_loop_sends_by_its_schedule_while_no_answer_comes() -> None:
    async def run() -> list[RequestSample]:
        async with fake_peer(wait_for=10) as peer:
            return await open_loop(client_of(peer.url), plan(10, every_ms=20), 3, Nobody())

    samples = run_as_the_command_does(run())
    figures = run_figures(samples, scheduled=True, slo=None)
    assert figures.completed == figures.peak_in_flight == 10
    assert [sample.scheduled_ns for sample in samples] == [index * 20 * MS for index in range(10)]
    assert all(sample.sent_ns >= sample.scheduled_ns and sample.run == 3 for sample in samples)


def test_a_client_that_is_held_up_measures_its_own_lag() -> None:
    import time

    class Slow(Nobody):
        def sent(self) -> None:
            time.sleep(0.03)  # the whole client stands still

    async def run() -> list[RequestSample]:
        async with fake_peer() as peer:
            return await open_loop(client_of(peer.url), plan(8, every_ms=5), 0, Slow())

    figures = run_figures(run_as_the_command_does(run()), scheduled=True, slo=None)
    assert not figures.kept_up
    assert figures.lag_ms is not None and figures.lag_ms.max >= 8 * 30 - 7 * 5


def test_a_closed_loop_has_no_more_under_way_than_it_may() -> None:
    async def run() -> list[RequestSample]:
        async with fake_peer(gap=0.01) as peer:
            return await closed_loop(client_of(peer.url), plan(7), 0, 3, Nobody())

    samples = run_as_the_command_does(run())
    assert [sample.index for sample in samples] == list(range(7))
    assert run_figures(samples, scheduled=False, slo=None).peak_in_flight == 3


def test_models_are_listed() -> None:
    async def run() -> list[str]:
        async with fake_peer() as peer:
            return [model.id for model in await served_models(HttpClient(Origin.parse(peer.url)))]

    assert run_as_the_command_does(run()) == ["fake"]


def test_an_address_is_read_with_its_defaults() -> None:
    assert str(Origin.parse("http://host")) == "http://host:80/v1"
    assert str(Origin.parse("https://[::1]:8443/openai/v1/")) == "https://[::1]:8443/openai/v1"
    for wrong in ("host:80", "ftp://host", "http://", "http://host:port"):
        with pytest.raises(BenchError):
            Origin.parse(wrong)


def test_events_are_found_in_any_pieces() -> None:
    data = b'event: x\r\ndata: {"a":1}\r\n\r\n: ping\n\ndata: two\ndata:lines\n\ndata: [DONE]\n\n'
    for size in (1, 2, 7, len(data)):
        splitter = EventSplitter()
        found = [event for at in range(0, len(data), size) for event in splitter.feed(data[at : at + size])]
        assert found == [b'{"a":1}', b"two\nlines", b"[DONE]"]
