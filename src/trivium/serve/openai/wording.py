"""Where servers of OpenAI's API say the same in different words: which of them this one uses."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

ReasoningField = Literal["both", "reasoning", "reasoning_content"]
NamedCallFinish = Literal["stop", "tool_calls"]


class Wording(Struct, frozen=True):
    reasoning_field: ReasoningField = "both"
    named_call_finish: NamedCallFinish = "stop"  # the finish reason of a call to the function that tool_choice names

    def under(self, field: Literal["reasoning", "reasoning_content"], text: str | None) -> str | UnsetType:
        """What stands under this name, of reasoning."""
        return (text or UNSET) if self.reasoning_field in ("both", field) else UNSET
