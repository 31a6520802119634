"""Choices, rules and structural tags."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from walker import SPECIAL, Walker

from trivium.types.request import Grammar, GrammarKind, Preamble

INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}


def tag(walker: Walker, form: dict[str, Any]) -> Any:
    prepared = walker.prepare(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": form}))
    assert prepared.error is None, prepared.error
    return prepared


def test_an_answer_is_one_of_the_choices(walker: Walker) -> None:
    choices = ["yes", "no", "yes, but", 'quo"te', "new\nline", "ünï 🙂"]
    prepared = walker.prepare(GrammarKind.CHOICE, json.dumps(choices))
    answers = {walker.write(prepared, seed) for seed in range(60)}
    assert answers <= set(choices)
    assert len(answers) > 2
    assert walker.accepts(prepared, "yes") and walker.accepts(prepared, "yes, but")
    assert not walker.accepts(prepared, "yes,")


@pytest.mark.parametrize("choices", ["[]", '[""]', "[1]", '"yes"', "no json"])
def test_choices_must_be_strings(walker: Walker, choices: str) -> None:
    assert "choice" in walker.why_not(GrammarKind.CHOICE, choices)


def test_gbnf_rules_are_followed(walker: Walker) -> None:
    arithmetic = """
    # sums of products
    root   ::= term ("+" term)*
    term   ::= factor ("*" factor)*
    factor ::= [0-9]{1,3} | "(" root ")"
    """
    prepared = walker.prepare(GrammarKind.RULES, arithmetic)
    for seed in range(10):
        answer = walker.write(prepared, seed)
        if answer is not None:
            assert re.fullmatch(r"[0-9+*()]+", answer)
            eval_by_hand(answer)
    assert walker.accepts(prepared, "(1+2)*3")
    assert not walker.accepts(prepared, "(1+2")


def eval_by_hand(text: str) -> int:
    """Of sums and products of numbers in brackets; raises where the text is none."""
    place = 0

    def take(wanted: str) -> bool:
        nonlocal place
        if text[place : place + 1] == wanted:
            place += 1
            return True
        return False

    def factor() -> int:
        nonlocal place
        if take("("):
            value = total()
            assert take(")")
            return value
        digits = re.compile(r"\d{1,3}").match(text, place)
        assert digits
        place = digits.end()
        return int(digits[0])

    def product() -> int:
        value = factor()
        while take("*"):
            value *= factor()
        return value

    def total() -> int:
        value = product()
        while take("+"):
            value += product()
        return value

    value = total()
    assert place == len(text)
    return value


def test_rules_without_recursion_are_matched_exactly(walker: Walker) -> None:
    """No part takes so much that the next one finds nothing."""
    prepared = walker.prepare(GrammarKind.RULES, 'root ::= word "ing"\nword ::= [a-z]+')
    assert walker.accepts(prepared, "running")
    assert not walker.accepts(prepared, "run")


def test_lark_rules_are_followed(walker: Walker) -> None:
    prepared = walker.prepare(GrammarKind.RULES, 'start: "a" inner "z"\ninner: /[0-9]+/ | "(" inner ")"')
    assert walker.accepts(prepared, "a((12))z")
    assert not walker.accepts(prepared, "a((12)z")


@pytest.mark.parametrize(
    "rules", ["", "nothing", "root ::= missing", 'other ::= "a"', "root ::= (", "start: nowhere", "root ::= root"]
)
def test_rules_that_make_no_grammar_are_refused(walker: Walker, rules: str) -> None:
    assert "grammar" in walker.why_not(GrammarKind.RULES, rules)


def test_a_tag_encloses_its_content(walker: Walker) -> None:
    prepared = tag(walker, {"type": "tag", "begin": "<n>", "content": INTEGER, "end": "</n>"})
    for seed in range(5):
        answer = walker.write(prepared, seed)
        assert answer is None or re.fullmatch(r"<n>-?\d+</n>", answer)


def test_triggers_begin_tags_in_free_text(walker: Walker) -> None:
    structures = [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"},
    ]
    text = json.dumps({"type": "structural_tag", "structures": structures, "triggers": ["<f="]})
    prepared = walker.prepare(GrammarKind.STRUCTURAL_TAG, text)
    for accepted in ("", "plain < text", "say <f=a>12</f> and <f=b>true</f>!", "<f=a>1</f><f=a>2</f>"):
        assert walker.accepts(prepared, accepted), accepted
    for refused in ("<f=a>true</f>", "<f=c>1</f>", "say <f=", "<f=a>1"):
        assert not walker.accepts(prepared, refused), refused


def test_at_least_one_tag_may_be_asked_for(walker: Walker) -> None:
    form = {
        "type": "triggered_tags",
        "triggers": ["<n>"],
        "tags": [{"begin": "<n>", "content": INTEGER, "end": "</n>"}],
    }
    prepared = tag(walker, form | {"at_least_one": True})
    assert walker.accepts(prepared, "so: <n>1</n>.")
    assert not walker.accepts(prepared, "so: nothing")
    prepared = tag(walker, form | {"at_least_one": True, "stop_after_first": True})
    assert walker.accepts(prepared, "<n>1</n>")
    assert not walker.accepts(prepared, "<n>1</n>.")


def test_tags_with_a_separator(walker: Walker) -> None:
    form = {"type": "tags_with_separator", "separator": ", ", "tags": [{"begin": "[", "content": INTEGER, "end": "]"}]}
    prepared = tag(walker, form | {"at_least_one": True})
    assert walker.accepts(prepared, "[1]") and walker.accepts(prepared, "[1], [2]")
    assert not walker.accepts(prepared, "") and not walker.accepts(prepared, "[1] [2]")
    prepared = tag(walker, form | {"stop_after_first": True})
    assert walker.accepts(prepared, "") and not walker.accepts(prepared, "[1], [2]")


def test_forms_combine(walker: Walker) -> None:
    say = {"type": "const_string", "value": "say "}
    word = {"type": "regex", "pattern": "[a-z]{2}"}
    options = {"type": "or", "elements": [word, {"type": "grammar", "grammar": 'root ::= "1" | "2"'}]}
    prepared = tag(walker, {"type": "sequence", "elements": [say, options, {"type": "optional", "content": say}]})
    for accepted in ("say ab", "say 2", "say absay "):
        assert walker.accepts(prepared, accepted), accepted
    assert not walker.accepts(prepared, "say 3")
    prepared = tag(walker, {"type": "repeat", "min": 2, "max": 3, "content": word})
    assert walker.accepts(prepared, "abcd") and not walker.accepts(prepared, "ab")


def test_text_runs_up_to_the_mark_that_ends_it(walker: Walker) -> None:
    form = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}
    prepared = tag(walker, {"type": "sequence", "elements": [form, INTEGER]})
    assert walker.accepts(prepared, "<t>what < ever\n</t>12")
    assert not walker.accepts(prepared, "<t>a</t>b</t>12")


def test_special_tokens_in_a_tag_are_those_tokens(walker: Walker) -> None:
    prepared = tag(walker, {"type": "tag", "begin": SPECIAL[1], "content": INTEGER, "end": ""})
    assert prepared.compiled is not None
    walker.service.open_row(1, prepared.compiled, ())
    assert walker.allowed(1) == [walker.tokenizer.token_id(SPECIAL[1])]
    walker.service.close_row(1)


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"type": "magic"}, "magic"),
        ({"type": "tag", "begin": "a", "content": INTEGER}, "end"),
        ({"type": "sequence", "elements": []}, "elements"),
        (
            {"type": "triggered_tags", "triggers": ["<x"], "tags": [{"begin": "<y", "content": INTEGER, "end": ""}]},
            "<y",
        ),
        ({"type": "json_schema", "json_schema": {"not": {}}}, "not"),
        ({"type": "any_text", "excludes": ["x"]}, "excludes"),
    ],
)
def test_a_tag_that_is_none_is_refused_by_name(walker: Walker, form: dict[str, Any], named: str) -> None:
    assert named in walker.why_not(GrammarKind.STRUCTURAL_TAG, json.dumps({"format": form}))


def test_reasoning_that_the_prompt_began_is_free_until_its_end(walker: Walker) -> None:
    grammar = Grammar(GrammarKind.CHOICE, '["yes", "no"]', Preamble(None, "</think>"))
    prepared = walker.finish(walker.service.prepare(grammar))
    assert walker.accepts(prepared, "hm, no </think>\n\nyes")
    assert not walker.accepts(prepared, "yes")


def test_reasoning_may_be_left_out_where_the_prompt_did_not_begin_it(walker: Walker) -> None:
    grammar = Grammar(GrammarKind.CHOICE, '["yes", "no"]', Preamble("<think>", "</think>"))
    prepared = walker.finish(walker.service.prepare(grammar))
    for accepted in ("yes", "<think>hm</think>no"):
        assert walker.accepts(prepared, accepted), accepted
    assert not walker.accepts(prepared, "<think>hm yes")
