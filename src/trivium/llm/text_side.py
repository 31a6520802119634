"""What of a model's files concerns text: its tokenizer and its chat template."""

from __future__ import annotations

from pathlib import Path

from trivium.formats.source import open_source
from trivium.text.template import ChatTemplate
from trivium.text.tokenizer import Tokenizer


def read_text_side(path: Path) -> tuple[Tokenizer, ChatTemplate]:
    """Raises the TriviumError that keeps the model from being spoken with."""
    with open_source(path) as source:
        return Tokenizer.from_source(source), ChatTemplate.from_source(source)
