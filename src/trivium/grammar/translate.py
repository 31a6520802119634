"""From a grammar as it was asked for to one that the matcher reads. For the grammar process: any text may come here."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from trivium.grammar.json_schema import matcher_schema, parse_json
from trivium.grammar.lark import LarkWriter, either, quoted, sequence
from trivium.grammar.regex import portable, whole
from trivium.grammar.rules import lark_rules
from trivium.grammar.structural_tag import tag_expression
from trivium.types.errors import InvalidRequestError
from trivium.types.request import Grammar, GrammarKind

BLANKS = r"/[ \t\r\n]{0,4}/"  # that models put between their reasoning and their answer


def translate(grammar: Grammar, special_ids: Mapping[str, int]) -> str:
    """Raises InvalidRequestError for what no matcher could read. `special_ids`: special tokens by their names."""
    writer = LarkWriter(special_ids)
    return writer.finish(sequence([_preamble(grammar, writer), _expression(grammar, writer)]))


def _preamble(grammar: Grammar, writer: LarkWriter) -> str:
    if grammar.preamble is None:
        return ""
    begin, end, goes_on = msgspec.structs.astuple(grammar.preamble)
    rest = sequence([writer.text_until(end), writer.literal(goes_on) if goes_on.strip() else writer.terminal(BLANKS)])
    return rest if begin is None else f"({writer.literal(begin)} {rest})?"


def _expression(grammar: Grammar, writer: LarkWriter) -> str:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return writer.json_schema(matcher_schema(grammar.text))
        case GrammarKind.REGEX:
            return writer.regex(portable(whole(grammar.text)))
        case GrammarKind.CHOICE:
            return writer.terminal(either([quoted(choice) for choice in _choices(grammar.text)]))
        case GrammarKind.RULES:
            return writer.lark(lark_rules(grammar.text))
        case GrammarKind.STRUCTURAL_TAG:
            return tag_expression(grammar.text, writer)
        case _:
            raise InvalidRequestError(f"a grammar cannot be asked for as {grammar.kind}")


def _choices(text: str) -> list[str]:
    choices = parse_json(text, "the list of choices")
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice for choice in choices):
        raise InvalidRequestError("the choices must be a list of strings that are not empty")
    if not choices:
        raise InvalidRequestError("there must be at least one choice")
    return list(dict.fromkeys(choices))
