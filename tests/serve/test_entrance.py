"""TLS, pages of other origins, names of the server, limits, and the access log, over real sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from server_process import PATIENCE, ServerProcess, wait_for
from tiny_model import ENDLESS, MODEL
from wire import connection, read_answer

CHAT = "/v1/chat/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
PAGE = "https://chat.example.com"
KEY = {"authorization": "Bearer door-secret"}


class Certificates:
    """A certificate for this machine, from an authority that the tests trust."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.log = folder / "access.jsonl"
        self.trust = ssl.create_default_context()
        self.authority.configure_trust(self.trust)
        self.renew()

    def renew(self) -> None:
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def guarded(endless_model: Path, certificates: Certificates) -> Iterator[ServerProcess]:
    process = ServerProcess(
        str(endless_model),
        *("--served-model-name", MODEL, "--dtype", "float32", "--api-key", "door-secret"),
        *("--tls-cert", str(certificates.cert), "--tls-key", str(certificates.key), "--tls-min-version", "1.3"),
        *("--cors-origin", PAGE, "--cors-origin", "http://localhost:3000", "--allowed-host", "llm.example.com"),
        *("--access-log", str(certificates.log), "--limit", "body_bytes=2000"),
        headers=KEY,
        verify=certificates.trust,
    )
    yield process
    assert process.stop() == 0
    assert "Traceback" not in process.log


# TLS


def test_everything_goes_over_tls(guarded: ServerProcess) -> None:
    assert guarded.url.startswith("https://")
    assert guarded.post(CHAT, ASK).status_code == 200
    with httpx.stream(
        "POST", guarded.url + CHAT, json={**ASK, "stream": True}, **guarded._defaults, timeout=60
    ) as stream:  # type: ignore[arg-type]
        assert stream.read().endswith(b"data: [DONE]\n\n")


def test_plain_http_and_old_tls_are_not_answered(guarded: ServerProcess, certificates: Certificates) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(guarded.url.replace("https", "http") + "/health", timeout=60)
    old = ssl.create_default_context()
    certificates.authority.configure_trust(old)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", guarded.port), timeout=PATIENCE) as sock:
        old.wrap_socket(sock, server_hostname="localhost")


def serial(server: ServerProcess, trust: ssl.SSLContext) -> str:
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as sock,
        trust.wrap_socket(sock, server_hostname="localhost") as wrapped,
    ):
        certificate = wrapped.getpeercert()
    assert certificate
    return str(certificate["serialNumber"])


def test_sighup_takes_up_a_new_certificate_without_cutting_what_runs(
    guarded: ServerProcess, certificates: Certificates
) -> None:
    def hang_up(told: str) -> None:
        before = guarded.log.count(told)
        os.kill(guarded.process.pid, signal.SIGHUP)
        wait_for(lambda: guarded.log.count(told) > before or None)

    first = serial(guarded, certificates.trust)
    with httpx.Client(base_url=guarded.url, headers=KEY, verify=certificates.trust, timeout=60) as client:
        body = {**ASK, "max_tokens": 1000, "ignore_eos": True, "stream": True}
        with client.stream("POST", CHAT, json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            certificates.renew()
            hang_up("read again: keys")
            assert [line for line in lines if line][-1] == "data: [DONE]"
    second = serial(guarded, certificates.trust)
    assert second != first
    certificates.cert.write_text("no certificate")
    hang_up("not read again: the TLS certificate")
    assert serial(guarded, certificates.trust) == second
    certificates.renew()


def test_a_certificate_that_cannot_be_used_is_said_at_once(tiny_model: Path, tmp_path: Path) -> None:
    from trivium.serve.access.tls import Tls
    from trivium.types.errors import ConfigError

    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Tls(tmp_path / "none.pem", None, "1.2")
    one, other = trustme.CA().issue_cert("localhost"), trustme.CA().issue_cert("localhost")
    (tmp_path / "cert.pem").write_bytes(one.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(other.private_key_pem.bytes())
    with pytest.raises(ConfigError, match="cannot be used: KEY_VALUES_MISMATCH"):
        Tls(tmp_path / "cert.pem", tmp_path / "key.pem", "1.2")
    with pytest.raises(ConfigError, match="cannot be used"):
        Tls(tmp_path / "cert.pem", None, "1.2")


# Pages of other origins


def preflight(server: ServerProcess, origin: str, **options: Any) -> httpx.Response:
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return httpx.options(server.url + CHAT, headers=asked, **options, timeout=60)


def test_a_page_that_is_allowed_is_told_what_it_may_send_before_it_has_a_key(
    guarded: ServerProcess, certificates: Certificates
) -> None:
    answer = preflight(guarded, PAGE, verify=certificates.trust)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers


def test_a_page_that_is_allowed_can_read_answers_and_refusals(guarded: ServerProcess) -> None:
    for headers, status in (({**KEY, "origin": PAGE}, 200), ({"origin": PAGE}, 401)):
        answer = guarded.get("/v1/models", headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize("origin", ["https://evil.example", "http://chat.example.com", f"{PAGE}.evil.example", "null"])
def test_a_page_that_is_not_allowed_gets_nothing(
    guarded: ServerProcess, certificates: Certificates, origin: str
) -> None:
    for answer in (
        preflight(guarded, origin, verify=certificates.trust),
        guarded.post(CHAT, ASK, headers={**KEY, "origin": origin}),
    ):
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


def test_no_page_is_allowed_by_default(server: ServerProcess) -> None:
    for origin in ("https://evil.example", "http://localhost:3000", "null"):
        assert preflight(server, origin).status_code == 403
        refused = server.post(CHAT, ASK, headers={"origin": origin})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in refused.headers
    # The server's own page asks from where it was loaded.
    assert server.post(CHAT, ASK, headers={"origin": server.url}).status_code == 200


# Names of the server


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("trivium.localhost", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("[evil.example]:8000", 403),
        ("llm.example.com", 403),
    ],
)
def test_a_local_server_answers_only_to_names_that_cannot_be_anothers(
    server: ServerProcess, host: str, status: int
) -> None:
    with connection(server) as sock:
        sock.sendall(f"GET /health HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        answered, _, body = read_answer(sock)
    assert answered == status
    if status == 403:
        assert json.loads(body)["error"]["code"] == "host_not_allowed"


def test_a_name_that_was_given_is_answered_to(guarded: ServerProcess) -> None:
    assert guarded.get("/health", headers={"host": "llm.example.com"}).status_code == 200
    assert guarded.get("/health", headers={"host": "other.example.com"}).status_code == 403


# Limits


def test_a_limit_can_be_changed_by_name(guarded: ServerProcess) -> None:
    body = {"prompt": "x" * 2000}
    refused = guarded.post("/v1/completions", body)
    assert refused.status_code == 413
    assert "2000 bytes" in refused.json()["error"]["message"]


# The access log


def entries(certificates: Certificates) -> list[dict[str, Any]]:
    return [json.loads(line) for line in certificates.log.read_text().splitlines()]


def test_each_request_is_a_line_with_its_id_its_key_and_its_end(
    guarded: ServerProcess, certificates: Certificates
) -> None:
    ids = {name: f"seen-{name}" for name in ("whole", "refused", "cut")}
    whole = guarded.post(CHAT + "?secret=1", ASK, headers={**KEY, "x-request-id": ids["whole"]})
    guarded.get("/v1/none", headers={"x-request-id": ids["refused"]})
    body = {**ASK, "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}
    headers = {**KEY, "x-request-id": ids["cut"]}
    with httpx.stream(
        "POST", guarded.url + CHAT, json=body, headers=headers, verify=guarded.verify, timeout=60
    ) as stream:
        lines = stream.iter_lines()
        next(lines)

    def logged() -> dict[str, dict[str, Any]] | None:
        found = {entry["request_id"]: entry for entry in entries(certificates) if entry["request_id"] in ids.values()}
        return found if len(found) == len(ids) else None

    found = wait_for(logged)
    line = found[ids["whole"]]
    assert (line["method"], line["path"], line["status"], line["key"]) == ("POST", CHAT, 200, "api-key-1")
    assert (line["bytes"], line["complete"], line["client"]) == (len(whole.content), True, "127.0.0.1")
    assert 0 < line["first_byte_seconds"] <= line["seconds"]
    assert (found[ids["refused"]]["status"], found[ids["refused"]]["key"]) == (401, None)
    assert (found[ids["cut"]]["status"], found[ids["cut"]]["complete"]) == (200, False)
    text = certificates.log.read_text()
    assert "door-secret" not in text and "secret=1" not in text and "Hello" not in text


def test_a_log_that_was_moved_away_is_begun_anew_on_sighup(guarded: ServerProcess, certificates: Certificates) -> None:
    moved = certificates.log.rename(certificates.log.with_suffix(".1"))
    before = guarded.log.count("read again: keys")
    os.kill(guarded.process.pid, signal.SIGHUP)
    wait_for(lambda: guarded.log.count("read again: keys") > before or None)
    lines = len(moved.read_text().splitlines())
    guarded.get("/health")
    wait_for(lambda: [entry["path"] for entry in entries(certificates)] == ["/health"] or None)
    assert len(moved.read_text().splitlines()) == lines
