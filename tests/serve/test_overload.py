"""What is put off as the queue fills, and in which order. The engine stands still (SIGSTOP) while that is tried: nothing ends
meanwhile, however long a test is held up, so that every count is exact."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fault_plan import FaultPlan
from server_process import ServerProcess, wait_for
from tiny_model import MODEL

from trivium.types.request import BACKGROUND_PRIORITY

ROWS, PLACES = 2, 4
ASK = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}
MESSAGES = [{"role": "user", "content": "Hello"}]

EVERY_WAY_TO_ASK: dict[str, dict[str, Any]] = {
    "/v1/completions": ASK,
    "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES},
    "/v1/responses": {"model": MODEL, "input": "Hello"},
    "/v1/messages": {"model": MODEL, "messages": MESSAGES, "max_tokens": 2},
    "/v1/embeddings": {"model": MODEL, "input": "Hello"},
    "/api/chat": {"model": MODEL, "messages": MESSAGES},
    "/api/generate": {"model": MODEL, "prompt": "Hello", "raw": True},
}


class Overload:
    def __init__(self, server: ServerProcess, plan: FaultPlan, clients: ThreadPoolExecutor) -> None:
        self.server = server
        self.plan = plan
        self._clients = clients

    @contextmanager
    def standing_still(self) -> Iterator[list[Future[httpx.Response]]]:
        """Whom it lets in meanwhile waits, and is answered afterwards."""
        self.server.wait_until_idle()
        let_in: list[Future[httpx.Response]] = []
        os.kill(self.server.engine_pid, signal.SIGSTOP)
        try:
            yield let_in
        finally:
            os.kill(self.server.engine_pid, signal.SIGCONT)
        assert [asked.result().status_code for asked in let_in] == [200] * len(let_in)

    def fill(self, let_in: list[Future[httpx.Response]], waiting: int) -> None:
        """Until so many wait for a row."""
        while len(let_in) < ROWS + waiting:
            let_in.append(self.ask(ASK))
        wait_for(lambda: self.state()["waiting"] == waiting or None)

    def ask(self, body: dict[str, Any]) -> Future[httpx.Response]:
        return self._clients.submit(self.server.post, "/v1/completions", body)

    def state(self) -> dict[str, Any]:
        return self.server.get("/health/progress").json()["overload"]

    def refused(self, path: str, body: dict[str, Any]) -> str:
        """Why."""
        answer = self.server.post(path, body)
        assert answer.status_code == 429, answer.text
        assert int(answer.headers["retry-after-ms"]) >= 1
        assert int(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        return error if isinstance(error, str) else error["message"]


@pytest.fixture
def overload(tiny_model: Path, tmp_path: Path) -> Iterator[Overload]:
    """One for each test: who was refused has a place kept, which another test would find taken."""
    plan = FaultPlan(tmp_path)
    options = ("--max-num-seqs", str(ROWS), "--max-waiting", str(PLACES), "--stall-seconds", "0")
    server = ServerProcess(str(tiny_model), "--served-model-name", MODEL, *options, environment=plan.environment)
    with ThreadPoolExecutor(ROWS + PLACES + 1) as clients:
        yield Overload(server, plan, clients)
    assert server.stop() == 0


def test_more_is_put_off_the_fuller_the_queue_is(overload: Overload) -> None:
    batch, several = {**ASK, "priority": BACKGROUND_PRIORITY}, {**ASK, "n": 2}
    long = {**ASK, "prompt": [5] * 2049}
    with overload.standing_still() as let_in:
        assert overload.state()["grade"] == "open"
        overload.fill(let_in, waiting=1)
        assert overload.state()["grade"] == "busy"
        assert "1 sequences wait for a row, and batches go after them" in overload.refused("/v1/completions", batch)
        overload.fill(let_in, waiting=2)
        assert overload.state()["grade"] == "crowded"
        assert "2 answers at once must wait" in overload.refused("/v1/completions", several)
        assert "a prompt of 2049 tokens, more than 2048, must wait" in overload.refused("/v1/completions", long)
        overload.fill(let_in, waiting=4)
        assert overload.state()["grade"] == "shut"
        assert "4 sequences wait for a row already, and at most 4 may" in overload.refused("/v1/completions", ASK)
    after = overload.server.wait_until_idle()
    assert after["trivium_overload_grade"] == 0
    for reason in ("batch", "several_answers", "long_prompt", "queue"):
        assert after[f'trivium_put_off_requests_total{{reason="{reason}"}}'] == 1


def test_what_is_refused_is_read_but_neither_rendered_nor_tokenized_and_the_urgent_is_let_in(
    overload: Overload,
) -> None:
    with overload.standing_still() as let_in:
        overload.fill(let_in, waiting=PLACES)
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/api/chat", "/api/generate"):
            wrong: dict[str, Any] = {"options": {"top_p": 7}} if path.startswith("/api") else {"top_p": 7}
            answer = overload.server.post(path, EVERY_WAY_TO_ASK[path] | wrong)
            assert answer.status_code == 400 and "top_p" in answer.text, path  # to come again would be of no use
        overload.plan.arm(*({"point": point, "times": 100} for point in ("text.template", "text.tokenize")))
        for path, body in EVERY_WAY_TO_ASK.items():
            assert "4 sequences wait for a row already" in overload.refused(path, body), path
        assert overload.plan.fired() == []
        overload.plan.disarm()
        let_in.append(overload.ask({**ASK, "priority": -1}))
        wait_for(lambda: overload.state()["waiting"] == PLACES + 1 or None)
