"""Grammars written as rules: Lark as it is, GBNF in Lark's words."""

from __future__ import annotations

from llguidance.gbnf_to_lark import GrammarParser, is_lark_syntax, resolve

from trivium.types.errors import InvalidRequestError


def lark_rules(text: str) -> str:
    if is_lark_syntax(text):
        return text
    if "::=" not in text:
        raise InvalidRequestError("a grammar must have a rule 'root ::= …' (GBNF) or 'start: …' (Lark)")
    try:
        rules = GrammarParser().parse(text)
        resolve(rules)
    except RecursionError:
        raise InvalidRequestError("the grammar is nested too deeply") from None
    except Exception as error:  # of several kinds, all with a sentence about the grammar
        raise InvalidRequestError(f"the grammar is not GBNF: {error}") from None
    start = rules["start"]
    if start.alternatives.is_terminal():
        # A language without recursion is one terminal, matched exactly; a sequence of terminals would each be greedy.
        start.name = "START_RULE"
        return "\n".join(["start: START_RULE", *map(str, rules.values())])
    return "\n".join(map(str, rules.values()))
