"""Writing a grammar in the matcher's language: Lark rules, with other grammars referred to by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llguidance import regex_to_lark

ANY_TEXT = "/(?s:.*)/"


class LarkWriter:
    """Expressions are strings; each may stand wherever an element of a rule may."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        """`special_ids`: tokens that have no text of their own and must be named by their ids."""
        self._special_ids = special_ids
        self._rules: list[str] = []
        self._grammars: list[dict[str, Any]] = []
        self._num_names = 0

    def literal(self, text: str) -> str:
        """The text, with special tokens in it as such."""
        parts: list[str] = []
        while text:
            found = [(text.find(name), -len(name), name) for name in self._special_ids if name in text]
            place, _, name = min(found, default=(len(text), 0, ""))
            if place:
                parts.append(quoted(text[:place]))
            if name:
                parts.append(f"<[{self._special_ids[name]}]>")
            text = text[place + len(name) :]
        return sequence(parts)

    def terminal(self, expression: str) -> str:
        return self._named("T", expression)

    def rule(self, expression: str, options: str = "") -> str:
        return self._named("r", expression, options)

    def regex(self, pattern: str) -> str:
        return self.terminal(regex_terminal(pattern))

    def text_until(self, mark: str) -> str:
        """Any text up to the first place where the mark stands, and the mark."""
        place = min((place for name in self._special_ids if (place := mark.find(name)) >= 0), default=len(mark))
        text, special = mark[:place], mark[place:]
        anything = self.terminal(ANY_TEXT)
        if not text:  # special tokens are no text, so any text ends before them
            return sequence([anything, self.literal(special)])
        return sequence([self.rule(f"{anything} {quoted(text)}", "[lazy]"), self.literal(special) if special else ""])

    def json_schema(self, schema: dict[str, Any]) -> str:
        return self._grammar({"json_schema": schema})

    def lark(self, rules: str) -> str:
        return self._grammar({"lark_grammar": rules})

    def finish(self, start: str) -> str:
        """The whole grammar, which begins with the expression `start`."""
        rules = "\n".join([f"start: {start}", *self._rules])
        return json.dumps({"grammars": [{"lark_grammar": rules}, *self._grammars]})

    def _named(self, letter: str, expression: str, options: str = "") -> str:
        name = self._new_name(letter)
        self._rules.append(f"{name}{options}: {expression}")
        return name

    def _grammar(self, grammar: dict[str, Any]) -> str:
        name = self._new_name("g")
        self._grammars.append({"name": name} | grammar)
        return f"@{name}"

    def _new_name(self, letter: str) -> str:
        self._num_names += 1
        return f"{letter}{self._num_names}"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def regex_terminal(pattern: str) -> str:
    return f"/{regex_to_lark(pattern)}/"


def sequence(parts: list[str]) -> str:
    return " ".join(part for part in parts if part) or '""'


def either(parts: list[str]) -> str:
    return f"({' | '.join(parts)})"
