"""Where a request's time went: told with the answer, by the server afterwards, on the command line, and as spans."""

from __future__ import annotations

import http.server
import json
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import ServerProcess, wait_for
from tiny_model import MODEL
from wire import chunks

from trivium.cli import main

CHAT = "/v1/chat/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, "ignore_eos": True}
SUM_TOLERANCE = 0.01  # of the wall time


def check_sum(account: dict[str, Any]) -> None:
    assert sum(account["causes"].values()) == pytest.approx(account["seconds"], rel=SUM_TOLERANCE)
    assert all(seconds >= 0 for seconds in account["causes"].values())


def ask(server: ServerProcess, **fields: object) -> tuple[str, httpx.Response]:
    request_id = f"why-{uuid.uuid4().hex}"
    return request_id, server.post(CHAT, {**ASK, **fields}, headers={"X-Request-Id": request_id})


def explained(server: ServerProcess, request_id: str) -> dict[str, Any]:
    """The account is there when the answer's last byte was written, a moment after its client has read it."""
    answer = wait_for(
        lambda: ((found := server.get(f"/v1/requests/{request_id}")).status_code == 200 and found) or None
    )
    return answer.json()


def test_causes_come_with_the_answer_and_sum_to_its_time(server: ServerProcess) -> None:
    metrics = ask(server, include_metrics=True)[1].json()["metrics"]
    check_sum(metrics)
    assert metrics["num_generated_tokens"] == 24
    assert metrics["num_steps"] == 23 and metrics["causes"]["decode"] > 0
    assert "metrics" not in ask(server)[1].json()


def test_a_stream_tells_them_in_its_last_chunk(server: ServerProcess) -> None:
    told = chunks(server, CHAT, {**ASK, "include_metrics": True})
    assert all("metrics" not in chunk for chunk in told[:-1])
    assert told[-1]["choices"] == [] and "usage" not in told[-1]
    check_sum(told[-1]["metrics"])
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 8, "ignore_eos": True, "include_metrics": True}
    both = chunks(server, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert both[-1]["usage"]["completion_tokens"] == both[-1]["metrics"]["num_generated_tokens"] == 8


def test_the_server_explains_what_its_clock_and_the_clients_agree_on(server: ServerProcess) -> None:
    ask(server)
    began = time.monotonic()
    request_id, _ = ask(server, n=2)
    seconds = time.monotonic() - began
    told = explained(server, request_id)
    account = told["account"]
    check_sum(account)
    assert account["seconds"] <= seconds
    assert (account["num_sequences"], account["num_generated_tokens"], account["end"]) == (2, 48, "complete")
    assert any("decoding" in sentence for sentence in told["sentences"])
    assert told["meanings"].keys() == account["causes"].keys() and "decoding" in told["meanings"]["decode"]


def test_a_refused_request_has_an_account_too(server: ServerProcess) -> None:
    request_id, answer = ask(server, max_tokens=10**6)
    assert answer.status_code == 400
    account = explained(server, request_id)["account"]
    assert account["end"] == "invalid"
    check_sum(account)


def test_the_slowest_come_first_and_unknown_ones_are_404(server: ServerProcess) -> None:
    for max_tokens in (2, 200):
        explained(server, ask(server, max_tokens=max_tokens)[0])
    seconds = [account["seconds"] for account in server.get("/v1/requests?order=slowest&limit=5").json()["data"]]
    assert seconds == sorted(seconds, reverse=True) and len(seconds) >= 2
    assert server.get("/v1/requests/nobody").status_code == 404
    assert server.get("/v1/requests?limit=0").status_code == server.get("/v1/requests?order=x").status_code == 400


def test_explain_says_it_in_words(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    request_id, _ = ask(server)
    explained(server, request_id)
    assert main(["explain", request_id, "--url", server.url]) == 0
    assert "from the first byte to the last" in capsys.readouterr().out
    assert main(["explain", "--url", server.url]) == 0
    assert "most of it" in capsys.readouterr().out
    assert main(["explain", "nobody", "--url", server.url]) == 1
    assert "nobody" in capsys.readouterr().err


def test_the_causes_of_all_requests_are_counted(server: ServerProcess) -> None:
    def causes() -> float:
        now = server.wait_until_idle()
        return sum(value for name, value in now.items() if name.startswith("trivium_request_cause_seconds_total"))

    before = causes()
    request_id, _ = ask(server)
    account = explained(server, request_id)["account"]
    assert causes() - before == pytest.approx(account["seconds"], rel=SUM_TOLERANCE)


class Collector(http.server.BaseHTTPRequestHandler):
    received: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    received: list[dict[str, Any]] = []
    handler = type("Kept", (Collector,), {"received": received})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_requests_become_spans_with_their_cost(
    tiny_model: Path, tmp_path: Path, collector: tuple[str, list[dict[str, Any]]]
) -> None:
    endpoint, received = collector
    prices = tmp_path / "prices.json"
    prices.write_text('{"currency": "EUR", "machine_hour": 3600}')
    options = ("--served-model-name", MODEL, "--otlp-endpoint", endpoint, "--price-file", str(prices))
    process = ServerProcess(str(tiny_model), *options)
    try:
        metrics = ask(process, include_metrics=True)[1].json()["metrics"]
        counted = process.wait_until_idle()['trivium_request_cost_total{currency="EUR"}']
    finally:
        assert process.stop() == 0
    assert metrics["cost"]["currency"] == "EUR"
    assert metrics["cost"]["amount"] == pytest.approx(metrics["engine_seconds"]) == pytest.approx(counted)
    spans = [
        span
        for body in received
        for part in body["resourceSpans"]
        for inner in part["scopeSpans"]
        for span in inner["spans"]
    ]
    (whole,) = [span for span in spans if span["name"] == "request"]
    causes = [span for span in spans if span.get("parentSpanId") == whole["spanId"]]
    length = sum(int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) for span in causes)
    assert length == pytest.approx(int(whole["endTimeUnixNano"]) - int(whole["startTimeUnixNano"]), rel=SUM_TOLERANCE)
    assert {"receiving", "prompt", "decode"} <= {span["name"] for span in causes}
