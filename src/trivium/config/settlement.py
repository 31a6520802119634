"""What becomes of each wish. A user's own value is kept or refused, and adjusted only where that was accepted; all is said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from trivium.config.options import EngineOptions
from trivium.types.decisions import Adjust, Decision, Refuse, Scalar, Wish
from trivium.types.errors import ConfigError
from trivium.types.facts import Adjustment

V = TypeVar("V", str, int)

ACCEPT = "--accept-adjustments takes what is possible instead"


class Settlement:
    def __init__(self, accepts: bool) -> None:
        self._accepts = accepts
        self.adjustments: list[Adjustment] = []

    def choose(self, option: str, value: Scalar, reason: str) -> None:
        """The user left it open."""
        self.adjustments.append(Adjustment(option, str(value), reason))

    def instead(self, option: str, possible: V, reason: str) -> V:
        """The user's value cannot be kept, for a reason that is a whole sentence. Raises unless that was accepted."""
        if not self._accepts:
            raise ConfigError(reason)
        self.adjustments.append(Adjustment(option, str(possible), reason))
        return possible


def wish_of(options: EngineOptions) -> Wish:
    return Wish(**{name: getattr(options, name) for name in Wish.__struct_fields__})


def settle_with_platform(
    options: EngineOptions, decisions: Iterable[Decision]
) -> tuple[EngineOptions, list[Adjustment]]:
    """The options as the platform can serve them. A value that is not the default is the user's own."""
    adjustments: list[Adjustment] = []
    defaults = {field.name: field.default for field in msgspec.structs.fields(EngineOptions)}
    for decision in decisions:
        if isinstance(decision, Refuse):
            raise ConfigError(f"{decision.reason}: {decision.remedy}")
        if not isinstance(decision, Adjust):
            continue
        if decision.option not in Wish.__struct_fields__:
            raise ConfigError(f"the platform wants to change {decision.option!r}, in which it has no say")
        given = getattr(options, decision.option)
        if given != defaults[decision.option] and not options.accept_adjustments:
            raise ConfigError(
                f"{decision.option} {given} cannot be kept, since {decision.reason}: give {decision.new}, or {ACCEPT}"
            )
        options = _replaced(options, decision)
        adjustments.append(Adjustment(decision.option, str(decision.new), f"{decision.reason} (not {given})"))
    return options, adjustments


def _replaced(options: EngineOptions, decision: Adjust) -> EngineOptions:
    """Checked as if the user had given it."""
    try:
        values = msgspec.structs.asdict(options) | {decision.option: decision.new}
        return msgspec.convert(values, EngineOptions)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the platform wants {decision.option} to be {decision.new!r}: {error}") from None
