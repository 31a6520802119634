"""`trivium serve` as a user runs it: a process of its own, reached over the loopback."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import openai

T = TypeVar("T")

HERE = str(Path(__file__).parent)  # where engine processes find cores of tests
MODEL_LABEL = re.compile(r'model_name="[^"]*",|,?model_name="[^"]*"')
READY = re.compile(r"^ready +(https?://\S+)", re.MULTILINE)
PATIENCE = 120.0  # seconds for what takes moments: a machine of others' work may stand still for many


class ServerProcess:
    def __init__(
        self,
        model: str,
        *options: str,
        more_models: tuple[str, ...] = (),
        state_dir: Path | None = None,
        program: tuple[str, ...] = ("-m", "trivium"),
        environment: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        verify: ssl.SSLContext | bool = True,
        python: str = sys.executable,
    ) -> None:
        """What it keeps for its clients goes with it, unless `state_dir` is given. `headers` go with `get` and `post`."""
        self.headers = headers or {}
        self.verify = verify
        self._own_state = None if state_dir else tempfile.TemporaryDirectory(prefix="trivium-state-")
        kept_in = state_dir or Path(self._own_state.name)
        environment = {**os.environ, **(environment or {}), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [
                python,
                *program,
                "serve",
                model,
                *more_models,
                "--port",
                "0",
                "--num-threads",
                "1",
                "--state-dir",
                str(kept_in),
                "--limit",
                f"stats_seconds={PATIENCE:g}",  # an engine that is held up is waited for: its numbers are those of now
                *options,
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = wait_for(self._ready_url)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)

    def _ready_url(self) -> str | None:
        if self.process.poll() is not None:
            self._reader.join()
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log}")
        found = READY.search(self.log)
        return found[1] if found else None

    @property
    def log(self) -> str:
        return "".join(self._lines)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def engine_pid(self) -> int:
        """The one child of the server."""
        (pid,) = children_of(self.process.pid)
        return pid

    def openai(self, **options: object) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60, **options)  # type: ignore[arg-type]

    def async_openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    @property
    def _defaults(self) -> dict[str, object]:
        return {"headers": self.headers, "verify": self.verify}

    def get(self, path: str, **options: object) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **{**self._defaults, **options})  # type: ignore[arg-type]

    def post(self, path: str, body: object = None, **options: object) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return httpx.post(self.url + path, timeout=60, **{**self._defaults, **options})  # type: ignore[arg-type]

    def metrics(self) -> dict[str, float]:
        """Each sample by its name with labels, as it is written; summed over models."""
        found: dict[str, float] = {}
        for line in self.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                name, _, value = MODEL_LABEL.sub("", line).replace("{}", "").rpartition(" ")
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def wait_until_idle(self) -> dict[str, float]:
        """Until the engine holds nothing of any request."""

        def idle() -> dict[str, float] | None:
            now = self.metrics()
            held = (
                now['trivium_kv_blocks{state="held"}'],
                now["trivium_running_sequences"],
                now["trivium_waiting_sequences"],
            )
            return now if held == (0, 0, 0) and now["trivium_requests_in_flight"] == 0 else None

        return wait_for(idle)

    def stop(self) -> int:
        """As a service manager does it; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self._reader.join(PATIENCE)
            if self._own_state is not None:
                self._own_state.cleanup()


def children_of(pid: int) -> set[int]:
    """The processes that it started."""
    found = set[int]()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found.update(map(int, path.read_text().split()))
    return found


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Nothing that it works on ends meanwhile, however long the test takes."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_for(poll: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """The first answer that is not None. It is asked for once more when the time is over: the wait may have been that of
    this process itself."""
    deadline = time.monotonic() + seconds
    while (value := poll()) is None:
        if time.monotonic() > deadline:
            if (value := poll()) is not None:
                return value
            raise AssertionError(f"nothing came within {seconds:g} s")
        time.sleep(0.05)
    return value
