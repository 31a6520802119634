"""An engine that lives and does not get on: seen, its stacks written down, and started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from server_process import ServerProcess, wait_for
from tiny_model import MODEL


def test_a_wedged_engine_is_told_dumped_and_replaced(tiny_model: Path) -> None:
    process = ServerProcess(str(tiny_model), "--served-model-name", MODEL, "--stall-seconds", "1.5")
    try:
        healthy = wait_for(lambda: ((told := process.get("/health/progress")).status_code == 200 and told) or None)
        assert healthy.json()["patience"] >= 1.5
        wedged = process.engine_pid
        os.kill(wedged, signal.SIGSTOP)
        stalled = wait_for(lambda: ((told := process.get("/health/progress")).status_code == 503 and told) or None)
        assert stalled.json().get("stalled") or "restarting" in stalled.text
        wait_for(lambda: (process.get("/health").status_code == 200 and process.engine_pid != wedged) or None)
        assert "has not turned for" in process.log
        body = {"model": MODEL, "prompt": "Hi", "max_tokens": 2}
        assert process.post("/v1/completions", body).status_code == 200
    finally:
        assert process.stop() == 0


def test_the_stacks_of_a_busy_engine_can_be_asked_for(server: ServerProcess) -> None:
    os.kill(server.engine_pid, signal.SIGUSR1)
    wait_for(lambda: ("most recent call first" in server.log and "loop.py" in server.log) or None)
    assert server.get("/health").status_code == 200
