"""A loaded model as the routes use it: its engine, its text side, and how it writes reasoning and tool calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cached_property

from trivium.dialects.detect import detect
from trivium.dialects.dialect import Dialect
from trivium.llm.async_llm import AsyncLLM
from trivium.observe.events import Event, Listener, tell
from trivium.observe.recent_waits import RecentWaits
from trivium.serve.limits import Limits
from trivium.text.fill_in_the_middle import FillInTheMiddle
from trivium.text.template import ChatTemplate
from trivium.text.tokenizer import Tokenizer
from trivium.types.card import ModelCard


@dataclass
class ServedModel:
    llm: AsyncLLM
    limits: Limits
    listener: Listener
    call_dialect: str | None = None  # by name; None: told from the model's chat template
    reasoning_dialect: str | None = None
    # Templates render one at a time; to wait for another's turn must not hold up the event loop.
    template_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    recent_waits: RecentWaits = field(default_factory=RecentWaits)

    def emit(self, event: Event) -> None:
        tell(self.listener, event)
        tell(self.recent_waits.on_event, event)

    @property
    def card(self) -> ModelCard:
        return self.llm.card

    @property
    def name(self) -> str:
        return self.llm.card.name

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.llm.tokenizer is not None  # it is read while the engine starts
        return self.llm.tokenizer

    @property
    def template(self) -> ChatTemplate:
        assert self.llm.template is not None
        return self.llm.template

    @cached_property
    def dialect(self) -> Dialect:
        """How the model writes reasoning and tool calls."""
        return dialect_of(self.tokenizer, self.template, self.call_dialect, self.reasoning_dialect)

    @cached_property
    def fill_in_the_middle(self) -> FillInTheMiddle | None:
        """None: the model has no tokens for it."""
        return FillInTheMiddle.of(self.tokenizer)


def dialect_of(
    tokenizer: Tokenizer, template: ChatTemplate, calls: str | None = None, reasoning: str | None = None
) -> Dialect:
    """`calls` and `reasoning` by name; None: told from the chat template."""
    return detect(template.source, calls, reasoning, is_token=lambda mark: tokenizer.token_id(mark) is not None)
