"""`--log-format json`: whatever is said on standard error is one JSON object a line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx


def test_every_line_is_an_object_also_when_the_engine_dies(tiny_model: Path, tmp_path: Path) -> None:
    command = [
        "-m",
        "trivium",
        "serve",
        str(tiny_model),
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
        engine = _child_of(process.pid)
        body = {"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            os.kill(engine, signal.SIGKILL)
            assert b"error" in b"".join(pieces)
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[1]
    lines += [json.loads(text) for text in rest.splitlines()]
    assert all({"time", "level", "logger", "process", "message"} <= line.keys() for line in lines)
    assert {line["level"] for line in lines} >= {"info", "warning"}


def _child_of(pid: int) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        children = [
            int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        ]
        if children:
            return children[0]
    raise AssertionError("the server has no engine")
