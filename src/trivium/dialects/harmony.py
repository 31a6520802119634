"""gpt-oss: an answer is a row of messages, each on a channel: analysis is reasoning, a recipient makes it a call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from trivium.dialects.calls import new_call_id
from trivium.dialects.dialect import CallForm, JsonSchema, Marks
from trivium.dialects.parser import Parser, Speech
from trivium.dialects.scanner import Reading, Scanner

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"

_ENDS = (END, CALL, RETURN, START)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


class HarmonyDialect:
    name = "harmony"
    reasoning = Marks(ANALYSIS, END, goes_on=f"{START}assistant{CHANNEL}final{MESSAGE}")
    call_form = CallForm(
        f"{CHANNEL}commentary to=functions.{{name}} {CONSTRAIN}json{MESSAGE}", CALL, lead=f"{START}assistant"
    )
    marks = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)

    def parser(self, tools: Mapping[str, JsonSchema], *, in_reasoning: bool) -> Parser:
        return Parser(partial(self._read, has_tools=bool(tools), in_reasoning=in_reasoning))

    def opens_reasoning(self, prompt: str, continued: str = "") -> bool:
        return prompt.endswith(ANALYSIS) or continued.rfind(ANALYSIS) > continued.rfind(END)

    def call_id(self) -> str:
        return new_call_id()

    def _read(self, scanner: Scanner, speech: Speech, has_tools: bool, in_reasoning: bool) -> Reading[None]:
        if in_reasoning:
            yield from _read_reasoning(scanner, speech)
        while not scanner.at_end:
            scanner.keep()
            pieces: list[str] = []
            end = yield from scanner.until((MESSAGE, END, CALL, RETURN), pieces.append, keeps=True)
            header = "".join(pieces)
            if end == MESSAGE:
                yield from _read_message(scanner, speech, header, has_tools)
            else:
                speech.content(header)  # no message has such an end: it is text that should have had a header


def _read_message(scanner: Scanner, speech: Speech, header: str, has_tools: bool) -> Reading[None]:
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    name = recipient[1].removeprefix("functions.") if recipient else ""
    if name and has_tools:
        speech.start_call(name)
        yield from scanner.until(_ENDS, speech.arguments)
        speech.end_call()
    elif name or (channel and channel[1] == "analysis"):
        yield from _read_reasoning(scanner, speech)
    else:
        speech.border()
        yield from scanner.until(_ENDS, speech.content)
        speech.border()


def _read_reasoning(scanner: Scanner, speech: Speech) -> Reading[None]:
    scanner.keep()
    speech.open_reasoning(scanner.position)
    if end := (yield from scanner.until(_ENDS, speech.reasoning)):
        speech.close_reasoning(scanner.position - len(end))
