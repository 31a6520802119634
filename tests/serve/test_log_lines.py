"""`--log-format json`: whatever is said on standard error is one JSON object a line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from server_process import PATIENCE, children_of, wait_for
from tiny_model import ENDLESS


def test_every_line_is_an_object_also_when_the_engine_dies(endless_model: Path, tmp_path: Path) -> None:
    command = [
        "-m",
        "trivium",
        "serve",
        str(endless_model),
        "--port",
        "0",
        "--log-format",
        "json",
        "--state-dir",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        [sys.executable, *command], stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert process.stderr is not None
    lines = []
    try:
        for text in process.stderr:
            lines.append(json.loads(text))
            if "ready" in lines[-1]["message"]:
                break
        url = lines[-1]["message"].split()[1]
        engine = min(wait_for(lambda: children_of(process.pid) or None))
        body = {"prompt": "Hi", "max_tokens": ENDLESS, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}, timeout=60) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            os.kill(engine, signal.SIGKILL)
            assert b"error" in b"".join(pieces)
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=PATIENCE)[1]
    lines += [json.loads(text) for text in rest.splitlines()]
    assert all({"time", "level", "logger", "process", "message"} <= line.keys() for line in lines)
    assert {line["level"] for line in lines} >= {"info", "warning"}
