"""The dialect of a model, told from its chat template: what it shows of past turns is what the model learned to write."""

from __future__ import annotations

from trivium.dialects.dialect import Dialect, Marks
from trivium.dialects.hermes import HermesCalls
from trivium.dialects.tagged import CallSyntax, TaggedDialect

THINK = Marks("<think>", "</think>")


def detect(template: str) -> Dialect:
    """`template`: the source of the model's chat templates, joined where there are several."""
    name, calls = _calls(template)
    reasoning = THINK if THINK.end in template else None
    return TaggedDialect(name, reasoning, calls)


def _calls(template: str) -> tuple[str, CallSyntax | None]:
    if "<tool_call>" in template:
        return "hermes", HermesCalls()
    return "hermes", HermesCalls()
