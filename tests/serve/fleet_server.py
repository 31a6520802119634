"""A server with keys, a certificate, a log and a store of models, whose faults can be let loose."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import trustme
from fault_plan import FaultPlan
from server_process import ServerProcess, children_of, wait_for

from trivium.serve.models.sizes import PROCESS_BYTES
from trivium.store import ModelStore

KV_BYTES = 4 << 20  # of each engine
CHAT = "/v1/chat/completions"
KEYS = '[[key]]\nname = "first"\nkey = "first-secret"\nadmin = true\n'
MORE_KEYS = KEYS + '[[key]]\nname = "second"\nkey = "second-secret"\n'
FIRST, SECOND = {"authorization": "Bearer first-secret"}, {"authorization": "Bearer second-secret"}


class FleetServer:
    """One model stays; there is room for one of those in the store."""

    def __init__(self, tiny_model: Path, directory: Path) -> None:
        self.plan = FaultPlan(directory)
        self.store = ModelStore(directory / "home")
        for name in ("ant", "bee"):
            self.store.pull(str(tiny_model), name=name)
        self.keys, self.log = directory / "keys.toml", directory / "access.log"
        self.keys.write_text(KEYS)
        self.keys.chmod(0o600)
        issued = trustme.CA().issue_cert("127.0.0.1", "localhost")
        certificate = directory / "cert.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(certificate))
        size = sum(file.stat().st_size for file in tiny_model.iterdir())
        budget = 2 * (PROCESS_BYTES + KV_BYTES + size) + (1 << 20)
        self.process = ServerProcess(
            f"house={tiny_model}",
            *("--dtype", "float32", "--kv-cache-bytes", str(KV_BYTES), "--memory-budget", str(budget)),
            *("--models-on-demand", "all", "--api-key-file", str(self.keys), "--tls-cert", str(certificate)),
            *("--access-log", str(self.log), "--limit", "model_wait_seconds=20"),
            environment={**self.plan.environment, "TRIVIUM_HOME": str(self.store.root)},
            headers=FIRST,
            verify=False,
        )
        self.engine = self.process.engine_pid  # of the model that stays
        self.right = self.ask("house").json()["choices"]

    def ask(self, model: str, **options: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "temperature": 0}
        return self.process.post(CHAT, body, **options)

    def unload(self, model: str) -> httpx.Response:
        return self.process.post("/api/generate", {"model": model, "keep_alive": 0})

    def loaded(self) -> set[str]:
        return {one["name"].removesuffix(":latest") for one in self.process.get("/api/ps").json()["models"]}

    def engines(self) -> set[int]:
        return children_of(self.process.process.pid)

    def hang_up(self, told: str) -> None:
        before = self.process.log.count(told)
        os.kill(self.process.process.pid, signal.SIGHUP)
        wait_for(lambda: self.process.log.count(told) > before or None)

    def check_well(self) -> None:
        """The model that stays has noticed nothing."""
        assert self.process.process.poll() is None
        assert self.ask("house").json()["choices"] == self.right
        assert self.engine in self.engines()

    def check_alone(self) -> None:
        """And no other model is left in memory, once those that are idle were let go."""
        for name in self.loaded() - {"house"}:
            self.unload(name)
        wait_for(lambda: self.engines() == {self.engine} or None)
        self.check_well()
