"""A platform's own errors are acted upon as it says: nobody fails for what passes, one request fails for what is its own, the
process ends for a lost device, and the server for one that is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import liar_ops
import liar_platform
import pytest
from liar_engine import finish, options, submit

from trivium.engine.core import EngineCore
from trivium.engine.step_failures import StepFailures
from trivium.platform.contract import ErrorAction
from trivium.platform.known_errors import KnownErrors, Reaction
from trivium.types.errors import ConfigError, DeviceUnfitError

KNOWN = KnownErrors(
    (
        ErrorAction("EZ1001", "retry", "the bus was busy"),
        ErrorAction("207008", "fail_request", "no stream was left"),
        ErrorAction("VendorError", "demote", "the op is not built"),
        ErrorAction("107030", "restart", "the context is lost"),
        ErrorAction("ECC", "drain", "the memory is broken"),
    )
)


class VendorError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("error", "reaction", "is_ops_fault"),
    [
        (RuntimeError("error EZ1001 at 0x7f"), Reaction.RETRY, False),
        (RuntimeError("207008"), Reaction.FAIL_REQUEST, False),
        (VendorError("op"), Reaction.FAIL_REQUEST, True),
        (RuntimeError("another"), Reaction.FAIL_REQUEST, True),
    ],
    ids=str,
)
def test_an_error_is_known_by_a_part_of_its_name_or_message(
    error: Exception, reaction: Reaction, is_ops_fault: bool
) -> None:
    assert StepFailures(KNOWN).react(error, now=0.0) is reaction
    assert KNOWN.is_ops_fault(error) == is_ops_fault


@pytest.mark.parametrize(
    ("error", "raised"), [(RuntimeError("107030"), RuntimeError), (RuntimeError("ECC"), DeviceUnfitError)], ids=str
)
def test_an_error_that_is_for_good_ends_the_process(error: Exception, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        StepFailures(KNOWN).react(error, now=0.0)


def test_what_passes_is_not_waited_for_without_end() -> None:
    failures, error = StepFailures(KNOWN), RuntimeError("EZ1001")
    for now in (0.0, 1.0, 2.0, 3.0):
        assert failures.react(error, now) is Reaction.RETRY
    with pytest.raises(RuntimeError):
        failures.react(error, now=10.0)
    failures.succeeded()
    assert failures.react(error, now=20.0) is Reaction.RETRY


def test_clients_are_told_what_the_platform_says_and_never_what_the_error_says() -> None:
    failures = StepFailures(KNOWN)
    assert failures.sentence(RuntimeError("207008: prompt 'secret'")) == "no stream was left"
    assert failures.sentence(RuntimeError("prompt 'secret'")) == "RuntimeError"


@pytest.fixture
def begun(model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], EngineCore]:
    """An engine of the liar with a request under way, whose device is about to fail as the lie says."""

    def begin(lie: str) -> EngineCore:
        monkeypatch.setenv(liar_platform.VARIABLE, lie)
        core = EngineCore(options(model))
        submit(core, "r", range(3, 21))
        submit(core, "s", range(3, 21))
        return core

    return begin


def test_an_error_that_passes_costs_nobody_anything(begun: Any, right_tokens: list[int]) -> None:
    core = begun("an error that passes")
    liar_ops.PRESSURE.is_on = True  # until it was raised once
    tokens, errors = finish(core)
    assert not liar_ops.PRESSURE.is_on and errors == {}
    assert tokens == {"r": right_tokens, "s": right_tokens}
    assert core.execution_stats().demotions == {}


def test_an_error_of_a_lost_device_ends_the_process_and_nothing_is_tried_before(begun: Any) -> None:
    core = begun("a device that is lost")
    liar_ops.PRESSURE.is_on = True
    with pytest.raises(RuntimeError, match="107030"):
        finish(core)


def test_a_device_that_is_gone_is_told_in_the_platform_s_words(begun: Any) -> None:
    core = begun("a device that is gone")
    liar_ops.PRESSURE.is_on = True
    with pytest.raises(DeviceUnfitError, match="its memory is broken"):
        finish(core)


def test_a_reaction_that_nobody_knows_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, "a reaction that is none")
    with pytest.raises(ConfigError, match="asks for what nobody does when an error comes: 'pray'"):
        EngineCore(options(model))
