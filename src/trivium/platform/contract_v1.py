"""Version 1 of the contract, still served: presence, capabilities, and taking the device."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from trivium.platform.contract import (
    CONTRACT_VERSION,
    Detection,
    DetectionState,
    DeviceFacts,
    DTypes,
    Identity,
    ImportedFacts,
    KernelFacts,
    LoadFacts,
    RunningFacts,
    StaticFacts,
    Versions,
    declared,
    probed,
    unknown,
)
from trivium.types.checks import Check
from trivium.types.decisions import Decision, Wish
from trivium.types.facts import Capabilities, ModelFacts

VERSION = 1
NOT_ASKED = f"contract {VERSION} does not ask for it"


class DetectionV1(Struct, frozen=True):
    present: bool
    reason: str


class PlatformV1(Protocol):
    name: str

    def detect(self) -> DetectionV1:
        """Is it here? Without initialising a device."""

    def capabilities(self) -> Capabilities: ...

    def open(self, num_threads: int) -> None:
        """Take the device for this process."""

    def give_back_unused(self) -> None:
        """Memory that this process keeps for reuse goes back to the device, so that what is free can be read."""


class AdaptedV1:
    """A platform of version 1, seen as one of the present version: what it was never asked is unknown."""

    contract_version = CONTRACT_VERSION

    def __init__(self, platform: PlatformV1, plugin_version: str) -> None:
        self.name = platform.name
        self._platform = platform
        self._plugin_version = plugin_version

    def static(self) -> StaticFacts:
        return StaticFacts(
            versions=declared(Versions(VERSION, self._plugin_version, ""), "the plugin's metadata"),
            identity=declared(Identity("", "", self.name, "", "", in_tree=False), NOT_ASKED),
            requires=unknown(NOT_ASKED),
            visibility=unknown(NOT_ASKED),
            env=unknown(NOT_ASKED),
            security=unknown(NOT_ASKED),
            conformance=unknown(NOT_ASKED),
        )

    def detect(self) -> Detection:
        found = self._platform.detect()
        return Detection(DetectionState.PRESENT if found.present else DetectionState.ABSENT, found.reason)

    def imported(self) -> ImportedFacts:
        dtypes = self._platform.capabilities().dtypes
        return ImportedFacts(
            dtypes=probed(DTypes(dtypes, dtypes, dtypes[0], ()), "its capabilities"), compile=unknown(NOT_ASKED)
        )

    def probe(self) -> DeviceFacts:
        return DeviceFacts(
            inventory=unknown(NOT_ASKED),
            memory_model=unknown(NOT_ASKED),
            collectives=unknown(NOT_ASKED),
            transfer=unknown(NOT_ASKED),
        )

    def capabilities(self) -> Capabilities:
        return self._platform.capabilities()

    def precheck(self) -> tuple[Check, ...]:
        return ()

    def with_model(self, model: ModelFacts) -> LoadFacts:
        return LoadFacts(limits=unknown(NOT_ASKED), features=unknown(NOT_ASKED))

    def negotiate(self, wish: Wish, model: ModelFacts) -> tuple[Decision, ...]:
        return ()

    def running(self) -> RunningFacts:
        return RunningFacts(
            validates_requests=unknown(NOT_ASKED),
            errors=unknown(NOT_ASKED),
            telemetry=unknown(NOT_ASKED),
            profiling=unknown(NOT_ASKED),
        )

    def kernel_facts(self) -> KernelFacts | None:
        return None

    def make_ops(self, wish: Wish, num_threads: int) -> Any | None:
        return None

    def open(self, num_threads: int) -> None:
        self._platform.open(num_threads)

    def give_back_unused(self) -> None:
        self._platform.give_back_unused()
