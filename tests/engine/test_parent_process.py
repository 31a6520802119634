"""Promises about the program that holds an engine: how it may end, and what then becomes of the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PRELUDE = """
import asyncio, os, signal, sys
from echo_client import echo_client, request, tokens_of
from trivium.engine.client import EngineState
"""


def start(body: str, directory: Path) -> subprocess.Popen[str]:
    """A script without a `__main__` guard, its temporary files in `directory`."""
    script = directory / "script.py"
    script.write_text(PRELUDE + body)
    return subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(directory)}
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_ended(pid: int) -> None:
    give_up = time.monotonic() + 120
    while not has_ended(pid):
        assert time.monotonic() < give_up, f"process {pid} lives on"
        time.sleep(0.01)


RUNNING_PARENT = """
async def main():
    client = echo_client()
    await client.start()
    running = asyncio.create_task(tokens_of(client, request("r", max_tokens=500)))
    print(client.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_an_engine_does_not_outlive_its_parent(how: str, tmp_path: Path) -> None:
    parent = start(RUNNING_PARENT, tmp_path)
    engine = int(line(parent))
    parent.send_signal(signal.Signals[how])
    parent.wait(120)
    wait_until_ended(engine)
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_sigterm_lets_running_requests_end(tmp_path: Path) -> None:
    parent = start(
        """
async def main():
    client = echo_client()
    await client.start()
    client.drain_on_sigterm()
    running = asyncio.create_task(tokens_of(client, request("r", max_tokens=300)))
    await asyncio.sleep(0)
    os.kill(client.pid, signal.SIGSTOP)  # until the signal has come: the request cannot end before
    print(client.pid, flush=True)
    while client.state is EngineState.READY:
        await asyncio.sleep(0.01)
    os.kill(client.pid, signal.SIGCONT)
    tokens = await running
    await client.close()
    print(len(tokens[0]), client.num_restarts, flush=True)

asyncio.run(main())
""",
        tmp_path,
    )
    engine = int(line(parent))
    parent.terminate()
    assert line(parent) == "300 0"
    assert parent.wait(120) == 0
    wait_until_ended(engine)


def test_a_program_that_just_ends_takes_its_engine_with_it(tmp_path: Path) -> None:
    parent = start(
        """
loop = asyncio.new_event_loop()
client = echo_client()
loop.run_until_complete(client.start())
print(client.pid, flush=True)
""",
        tmp_path,
    )
    engine = int(line(parent))
    parent.wait(120)
    wait_until_ended(engine)
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
