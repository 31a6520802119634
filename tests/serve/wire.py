"""Raw sockets and raw SSE: what no client library would send or show."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from server_process import PATIENCE, ServerProcess


def request_bytes(path: str, body: object, *headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(data)}",
    ]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


@contextmanager
def connection(server: ServerProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as sock:
        yield sock


def read_answer(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and what came of the body until the server closed or the announced length was there."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (received := sock.recv(65536))
        assert received, f"the connection ended after {data!r}"
    head, _, body = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)) and (received := sock.recv(65536)):
        body += received
    return int(status_line.split()[1]), headers, body


def raw_events(server: ServerProcess, path: str, body: dict[str, Any]) -> list[str]:
    """The events of a stream as they were framed, without the blank lines between them."""
    with httpx.stream("POST", server.url + path, json={**body, "stream": True}, timeout=60) as response:
        assert response.status_code == 200, response.read()
        text = response.read().decode()
    assert text.endswith("\n\n")
    return text[:-2].split("\n\n")


def chunks(server: ServerProcess, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON of each event but `[DONE]`, which must be the last."""
    *events, done = raw_events(server, path, body)
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]
