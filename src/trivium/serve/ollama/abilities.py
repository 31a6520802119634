"""What a model can do, in Ollama's words, and the template that says so; read from its files where it is not loaded."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from trivium.dialects.dialect import Dialect
from trivium.formats.source import open_source
from trivium.serve.models.served import ServedModel, dialect_of
from trivium.text.fill_in_the_middle import FillInTheMiddle
from trivium.text.template import ChatTemplate
from trivium.text.tokenizer import Tokenizer
from trivium.types.errors import TriviumError


class Abilities(Struct, frozen=True):
    template: str = ""
    names: tuple[str, ...] = ()


def abilities_of(model: ServedModel) -> Abilities:
    if model.card.task != "generate":
        return Abilities(names=("embedding",))
    return Abilities(model.template.source, _names(model.dialect, model.fill_in_the_middle))


def read_abilities(path: Path) -> Abilities:
    """Nothing where the files cannot be read. Takes a while: for a thread."""
    try:
        with open_source(path) as source:
            tokenizer, template = Tokenizer.from_source(source), ChatTemplate.from_source(source)
    except TriviumError:
        return Abilities()
    return Abilities(template.source, _names(dialect_of(tokenizer, template), FillInTheMiddle.of(tokenizer)))


def _names(dialect: Dialect, fill_in_the_middle: FillInTheMiddle | None) -> tuple[str, ...]:
    can = {
        "completion": True,
        "tools": dialect.call_form is not None,
        "thinking": dialect.reasoning is not None,
        "insert": fill_in_the_middle is not None,
    }
    return tuple(name for name, is_able in can.items() if is_able)
