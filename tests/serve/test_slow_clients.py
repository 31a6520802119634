"""Clients that send slowly, against a real HTTP server with limits short enough to wait for."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import uvicorn
from server_process import PATIENCE, wait_for
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from wire import read_answer

from trivium.serve.body import read_json
from trivium.serve.error_answers import answer_error
from trivium.serve.errors import ApiError
from trivium.serve.http_protocol import BoundedHttpProtocol
from trivium.serve.limits import Limits
from trivium.serve.listen import listen
from trivium.serve.request_ids import RequestIds

SHORT = Limits(header_seconds=0.3, body_seconds=0.3)
SMALL = Limits(body_bytes=1000, header_bytes=500, discard_seconds=0.5)
BETWEEN = Limits(header_seconds=2.0)


@contextmanager
def serving(limits: Limits) -> Iterator[int]:
    """In a thread; the port."""

    async def echo(request: Request) -> Response:
        return PlainTextResponse(str(await read_json(request, msgspec.json.Decoder(dict), limits)))

    app = Starlette(routes=[Route("/", echo, methods=["POST"])], exception_handlers={ApiError: answer_error})
    protocol = BoundedHttpProtocol.with_limits(limits)
    config = uvicorn.Config(
        RequestIds(app, 100), http=protocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=PATIENCE
    )
    server = uvicorn.Server(config)
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_for(lambda: server.started or None)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def hasty() -> Iterator[int]:
    with serving(SHORT) as port:
        yield port


@pytest.fixture(scope="module")
def frugal() -> Iterator[int]:
    with serving(SMALL) as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def test_e6_headers_that_do_not_end_in_time_are_a_timeout(hasty: int) -> None:
    for beginning in (b"", HEAD):
        with connect(hasty) as sock:
            sock.sendall(beginning)
            status, _, body = read_answer(sock)
            assert status == 408 and b"headers_too_slow" in body
            assert sock.recv(10) == b""


def test_e6_a_body_that_does_not_end_in_time_is_a_timeout(hasty: int) -> None:
    with connect(hasty) as sock:
        sock.sendall(HEAD + b"content-length: 10\r\n\r\n{")
        status, headers, _ = read_answer(sock)
        assert (status, headers["connection"]) == (408, "close")


def test_e6_a_body_that_grows_beyond_the_limit_is_too_large(frugal: int) -> None:
    with connect(frugal) as sock:
        sock.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"64\r\n" + b" " * 100 + b"\r\n")
        for _ in range(20):
            sock.sendall(b"64\r\n" + b" " * 100 + b"\r\n")
        status, _, body = read_answer(sock)
        assert status == 413 and b"1000 bytes" in body


def test_a_connection_that_is_kept_open_has_time_between_its_requests() -> None:
    with serving(BETWEEN) as port, connect(port) as sock:
        for wait in (BETWEEN.header_seconds * 1.2, 0):
            sock.sendall(HEAD + b"content-length: 2\r\n\r\n{}")
            assert read_answer(sock)[0] == 200
            assert not is_readable(sock, wait), "neither an answer nor the end"


def test_headers_sent_in_small_pieces_are_counted_together(frugal: int) -> None:
    with connect(frugal) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nhost: x\r\n")
        while not is_readable(
            sock, 0.01
        ):  # the piece in which headers begin is not counted, nor what joins it on its way
            sock.sendall(b"x: some text\r\n")
        assert read_answer(sock)[0] == 431


def is_readable(sock: socket.socket, seconds: float) -> bool:
    """Within the time."""
    return bool(select.select([sock], [], [], seconds)[0])
