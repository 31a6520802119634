"""Thousands of requests to every route, right and wrong: no answer of 500 or more, a server that stays awake, and nothing
held at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_requests import BODIES, Requests, application_routes
from fuzz_run import fuzz
from server_process import ServerProcess
from tiny_model import MODEL

SEED = 1
CONTEXT = 256  # tokens: the longest that a request without a limit of its own can go on


@pytest.fixture(scope="module")
def fuzzed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ["--served-model-name", MODEL, "--max-model-len", str(CONTEXT), "--reasoning-parser", "think"]
    home = {"TRIVIUM_HOME": str(tmp_path_factory.mktemp("home"))}  # models may be deleted
    process = ServerProcess(str(tiny_model), *options, environment=home)
    yield process
    assert process.stop() == 0


def held_ids(server: ServerProcess) -> dict[str, list[str]]:
    """Of things to ask for, by the path parameters that name them."""
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}
    line["body"] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}  # type: ignore[assignment]
    upload = {"file": ("lines", json.dumps(line).encode())}
    files = [server.post("/v1/files", files=upload, data={"purpose": "batch"}).json()["id"] for _ in range(3)]
    batch = {"input_file_id": files[0], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    asked = {"input": "Hello", "max_output_tokens": 2}
    return {
        "file_id": files,
        "batch_id": [server.post("/v1/batches", batch).json()["id"]],
        "response_id": [server.post("/v1/responses", asked).json()["id"] for _ in range(3)],
        "conversation_id": [server.post("/v1/conversations", {}).json()["id"] for _ in range(3)],
        "item_id": ["msg_1"],
    }


@pytest.mark.parametrize("num_requests", [8_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_request_whatever_it_is_fails_the_server(fuzzed: ServerProcess, num_requests: int) -> None:
    requests = Requests(SEED, held_ids(fuzzed))
    findings = asyncio.run(fuzz(fuzzed.port, requests, num_requests, num_connections=12))
    assert not findings.problems, f"{len(findings.problems)} problems:\n" + "\n".join(findings.problems[:10])
    assert findings.num_answered > 0.9 * num_requests
    assert findings.beats > 0
    taken = {route for route, statuses in findings.statuses.items() if statuses[200]}
    assert BODIES.keys() <= taken, "some routes took nothing, so nothing behind their doors was tried"
    fuzzed.wait_until_idle()
    assert "Traceback" not in fuzzed.log, fuzzed.log[-5000:]


def test_every_route_that_takes_json_has_its_type_drawn() -> None:
    bodiless = {
        "/files",
        "/api/blobs/{digest}",
        "/api/pull",
        "/batches/{batch_id}/cancel",
        "/responses/{response_id}/cancel",
    }
    with_bodies = {path for method, path in application_routes() if method == "POST"}
    assert with_bodies - bodiless <= BODIES.keys()
