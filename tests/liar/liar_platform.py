"""A platform over the CPU with one switch for each lie that platforms were seen to tell. Its lie is in TRIVIUM_LIAR_LIE."""

from __future__ import annotations

import os
import signal
from typing import Any

from msgspec import structs

from trivium.platform.contract import Detection, DetectionState, ErrorAction, PlatformLimits, Variable, declared
from trivium.platform.cpu import CpuPlatform
from trivium.types.decisions import Adjust

VARIABLE = "TRIVIUM_LIAR_LIE"
TAKEN = "LIAR_DEVICE_TAKEN_BY"  # set in the process that opened it


def the_lie() -> str:
    return os.environ.get(VARIABLE, "")


class LiarPlatform(CpuPlatform):
    name = "liar"

    def __init__(self) -> None:
        if the_lie() == "a changed contract":
            self.contract_version = 3

    def static(self) -> Any:
        if the_lie() == "answers of another kind":
            return {"identity": "trust me"}
        env = declared((Variable(VARIABLE, "text", "", "which lie is told"),), "this file")
        return structs.replace(super().static(), env=env)

    def detect(self) -> Detection:
        if the_lie() == "a device that is taken when it is looked for":
            os.environ[TAKEN] = str(os.getpid())
        return Detection(DetectionState.PRESENT, "the best chip there is")

    def capabilities(self) -> Any:
        honest = super().capabilities()
        match the_lie():
            case "a dtype that is none":
                return structs.replace(honest, dtypes=("float4", "float32"))
            case "more free than there is":
                return structs.replace(honest, available_bytes=honest.memory_bytes * 2)
            case "wrong total memory":
                return structs.replace(honest, memory_bytes=1 << 60, available_bytes=1 << 59)
            case "no threads":
                return structs.replace(honest, num_threads=0)
            case "a crash when asked":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "an error when asked":
                raise OSError("error 107030")
        return honest

    def with_model(self, model: Any) -> Any:
        facts = super().with_model(model)
        if the_lie() == "an impossible limit":
            return structs.replace(facts, limits=declared(PlatformLimits(max_model_len=0), "a slip"))
        return facts

    def negotiate(self, wish: Any, model: Any) -> Any:
        match the_lie():
            case "an error while negotiating":
                raise KeyError("EZ9999")
            case "a say in what is not its own":
                return (Adjust("seed", None, 7, "we like it"),)
            case "a silent change":
                return (Adjust("max_num_seqs", wish.max_num_seqs, 1, "that is what we tested"),)
        return ()

    def running(self) -> Any:
        errors = (
            ErrorAction("EZ1001", "retry", "the bus was busy"),
            ErrorAction("107030", "restart", "the device's context is lost"),
            ErrorAction("ECC", "drain", "its memory is broken"),
        )
        if the_lie() == "a reaction that is none":
            errors = (ErrorAction("EZ9999", "pray", "nobody knows"),)
        return structs.replace(super().running(), errors=declared(errors, "this file"))

    def make_ops(self, wish: Any, num_threads: int) -> Any:
        from liar_ops import ops_of

        return ops_of(the_lie())


class OlderLiar:
    """Of contract 1, without a method that contract 1 asks for."""

    name = "liar"

    def detect(self) -> Any:
        return CpuPlatform().detect()

    def capabilities(self) -> Any:
        return CpuPlatform().capabilities()

    def open(self, num_threads: int) -> None: ...


def make() -> Any:
    return OlderLiar() if the_lie() == "an older contract, changed" else LiarPlatform()
