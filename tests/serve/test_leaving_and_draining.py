"""Clients that leave, and a server that does, in every language that is spoken here."""

from __future__ import annotations

import json
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import PATIENCE, ServerProcess, wait_for
from tiny_model import ENDLESS, MODEL
from wire import connection, request_bytes

USER = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"
ON_AND_ON = {"model": MODEL, "messages": USER, "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}

ASKS: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": USER},
    "/v1/completions": {"model": MODEL, "prompt": ["Hello", "you"]},
    "/v1/responses": {"model": MODEL, "input": "Hello"},
    "/v1/messages": {"model": MODEL, "messages": USER, "max_tokens": 20},
    "/api/chat": {"model": MODEL, "messages": USER},
    "/api/generate": {"model": MODEL, "prompt": "Hello"},
    "/v1/embeddings": {"model": MODEL, "input": ["Hello", "you"]},
    "/v1/rerank": {"model": MODEL, "query": "Hello", "documents": ["you"]},
    "/api/embed": {"model": MODEL, "input": "Hello"},
}
STREAMED = [path for path in ASKS if not path.endswith(("embeddings", "rerank", "embed"))]


@pytest.fixture(scope="module")
def narrow(endless_model: Path) -> Iterator[ServerProcess]:
    """It serves one sequence at a time."""
    process = ServerProcess(
        str(endless_model), "--served-model-name", MODEL, "--dtype", "float32", "--max-num-seqs", "1"
    )
    yield process
    assert process.stop() == 0
    assert "Traceback" not in process.log


@pytest.mark.parametrize(("path", "stream"), [*((path, False) for path in ASKS), *((path, True) for path in STREAMED)])
def test_t8_a_client_that_leaves_the_queue_leaves_nothing_there(narrow: ServerProcess, path: str, stream: bool) -> None:
    """What it asked for has not begun: whatever the model would say, it cannot have ended by itself."""
    before = narrow.wait_until_idle()
    with httpx.stream("POST", narrow.url + CHAT, json=ON_AND_ON, timeout=60) as first:
        lines = first.iter_lines()
        next(lines)
        with connection(narrow) as sock:
            sock.sendall(request_bytes(path, {**ASKS[path], "stream": stream}))
            wait_for(lambda: narrow.metrics()["trivium_waiting_sequences"] or None)
            if stream:  # once with a reset, once with an end
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: narrow.metrics()["trivium_waiting_sequences"] == 0 or None)
        cancelled = 'trivium_requests_ended_total{end="cancelled"}'
        now = wait_for(lambda: ((now := narrow.metrics())[cancelled] > before[cancelled] and now) or None)
        assert now["trivium_running_sequences"] == 1
        assert now[cancelled] == before[cancelled] + 1
    narrow.wait_until_idle()


def last_event(text: str) -> str:
    """What ends a stream, in any of the languages."""
    line = text.rstrip("\n").splitlines()[-1].removeprefix("data: ")
    if line == "[DONE]":
        return line
    last = json.loads(line)
    return "done" if last.get("done") else last["type"]


ENDS = {
    CHAT: "[DONE]",
    "/v1/completions": "[DONE]",
    "/v1/messages": "message_stop",
    "/api/chat": "done",
    "/api/generate": "done",
}


def test_sigterm_lets_streams_of_every_language_end_and_refuses_new_requests_in_their_words(
    endless_model: Path,
) -> None:
    options = ("--served-model-name", MODEL, "--dtype", "float32", "--drain-seconds", f"{PATIENCE:g}")
    server = ServerProcess(str(endless_model), *options)
    try:
        with ExitStack() as stack:
            keeps_open = stack.enter_context(httpx.stream("POST", server.url + CHAT, json=ON_AND_ON, timeout=60))
            lines = keeps_open.iter_lines()
            next(lines)
            limited = {path: {**ASKS[path], "stream": True} for path in ENDS}
            limited[CHAT] |= {"max_tokens": 100}
            limited["/v1/completions"] |= {"max_tokens": 100}
            limited["/api/chat"] |= {"options": {"num_predict": 100}}
            limited["/api/generate"] |= {"options": {"num_predict": 100}}
            streams = {
                path: stack.enter_context(httpx.stream("POST", server.url + path, json=body, timeout=60))
                for path, body in limited.items()
            }
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: server.get("/health").status_code == 503 or None)
            for path, body in ASKS.items():
                refused = server.post(path, body)
                assert refused.status_code == (529 if path == "/v1/messages" else 503)
                assert int(refused.headers["retry-after"]) >= 1
                error = refused.json()["error"]
                assert "shutting down" in (error if path.startswith("/api/") else error["message"])
            assert {path: last_event(stream.read().decode()) for path, stream in streams.items()} == ENDS
        # The one that kept the server open has left.
        assert server.process.wait(PATIENCE) == 0
        assert "Traceback" not in server.log
    finally:
        server.stop()
