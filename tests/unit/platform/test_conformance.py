"""The suite that holds platforms to the contract: the CPU passes all of it, and it goes red for those who do not."""

from typing import Any

import pytest
from msgspec.structs import replace

from trivium.platform.conformance import conformance, main
from trivium.platform.contract import Platform, unknown
from trivium.platform.cpu import CpuPlatform
from trivium.types.checks import Check
from trivium.types.decisions import Adjust, Decision, Refuse, Wish
from trivium.types.facts import Capabilities, ModelFacts


def failed(platform: Platform) -> set[str]:
    return {check.name for check in conformance(platform) if check.state == "fail"}


def test_the_oracle_passes_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    checks = conformance(CpuPlatform())
    assert [check for check in checks if check.state != "ok"] == []
    assert len(checks) >= 300
    assert main("cpu") == 0
    assert f"{len(checks)} of {len(checks)} checks hold for cpu" in capsys.readouterr().out


class Restless(CpuPlatform):
    """Wants more each time its wish is granted."""

    def negotiate(self, wish: Wish, model: ModelFacts) -> tuple[Decision, ...]:
        return (Adjust("block_size", wish.block_size, wish.block_size * 2, "larger is better"),)


class Moody(CpuPlatform):
    def __init__(self) -> None:
        self.asked = 0

    def negotiate(self, wish: Wish, model: ModelFacts) -> tuple[Decision, ...]:
        self.asked += 1
        return () if self.asked % 2 else (Adjust("block_size", wish.block_size, 999, "a mood"),)


class Unhelpful(CpuPlatform):
    def negotiate(self, wish: Wish, model: ModelFacts) -> tuple[Decision, ...]:
        return (Refuse("dtype", "no", ""),)

    def precheck(self) -> tuple[Check, ...]:
        return (Check("firmware", "fail", "old", "new", ""),)


class Vague(CpuPlatform):
    def static(self) -> Any:
        return replace(super().static(), identity=unknown(""), security="none")

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), platform="someone", dtypes=("float16",))


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        (Restless(), {"negotiate auto, auto, 16, None, heads of 64"}),
        (Moody(), {"negotiate float32, int8, 7, 100, heads of 20"}),
        (Unhelpful(), {"negotiate auto, auto, 16, None, heads of 64", "precheck firmware"}),
        (Vague(), {"static.identity reason", "static.security", "static travels", "platform name", "dtypes"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_platform_that_does_not_keep_the_contract_is_told_where(platform: Platform, expected: set[str]) -> None:
    assert expected <= failed(platform)
