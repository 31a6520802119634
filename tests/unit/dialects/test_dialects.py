"""Answers of each dialect, read whole and in every way of cutting them up."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from recorded_answers import ANSWERS, MALFORMED, TOOLS, Answer

from trivium.dialects.detect import CALLS, HARMONY, REASONING, detect
from trivium.dialects.dialect import Dialect
from trivium.dialects.parser import Parser
from trivium.dialects.parts import CallArguments, CallEnd, CallStart, Content, Part, Reasoning

BY_NAME = {answer.name: answer for answer in ANSWERS}


def dialect_of(calls: str, think: str | None = None) -> Dialect:
    return detect("", calls, think or "none")


def parser_of(answer: Answer) -> Parser:
    parser = dialect_of(answer.calls, answer.think).parser(TOOLS, in_reasoning=answer.in_reasoning)
    assert parser is not None
    return parser


def read(parser: Parser, pieces: list[str]) -> list[Part]:
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return parts + parser.finish()


def joined(parts: list[Part]) -> list[Part]:
    """Neighbours of one kind made one."""
    whole: list[Part] = []
    for part in parts:
        match whole[-1:], part:
            case [Content(before)], Content(text):
                whole[-1] = Content(before + text)
            case [Reasoning(before)], Reasoning(text):
                whole[-1] = Reasoning(before + text)
            case [CallArguments(number, before)], CallArguments(_, text):
                whole[-1] = CallArguments(number, before + text)
            case _:
                whole.append(part)
    return whole


def calls_of(parts: list[Part]) -> list[tuple[str, str]]:
    starts = [part for part in parts if isinstance(part, CallStart)]
    return [
        (start.name, "".join(p.text for p in parts if isinstance(p, CallArguments) and p.number == start.number))
        for start in starts
    ]


def text_of(parts: list[Part], kind: type[Content] | type[Reasoning]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


@pytest.mark.parametrize("name", BY_NAME)
def test_an_answer_is_read_into_content_reasoning_and_calls(name: str) -> None:
    answer = BY_NAME[name]
    parser = parser_of(answer)
    parts = read(parser, [answer.text])
    assert text_of(parts, Content) == answer.content
    assert text_of(parts, Reasoning) == answer.reasoning
    assert [(name, json.loads(arguments)) for name, arguments in calls_of(parts)] == list(answer.made)
    if answer.ids is not None:
        assert tuple(part.id for part in parts if isinstance(part, CallStart)) == answer.ids
    assert parser.num_malformed == 0


@pytest.mark.parametrize("name", BY_NAME)
def test_calls_are_numbered_begun_and_ended_one_after_another(name: str) -> None:
    answer = BY_NAME[name]
    open_call, begun = None, 0
    for part in read(parser_of(answer), [answer.text]):
        match part:
            case CallStart(number):
                assert open_call is None and number == begun
                open_call, begun = number, begun + 1
            case CallArguments(number, text):
                assert number == open_call and text
            case CallEnd(number):
                assert number == open_call
                open_call = None
            case _:
                assert open_call is None and part.text
    assert open_call is None


@pytest.mark.parametrize("name", BY_NAME)
def test_an_answer_reads_the_same_character_by_character(name: str) -> None:
    answer = BY_NAME[name]
    parser, whole = parser_of(answer), parser_of(answer)
    assert joined(read(parser, list(answer.text))) == joined(read(whole, [answer.text]))
    assert parser.reasoning_spans == whole.reasoning_spans
    assert parser.num_malformed == whole.num_malformed


def cut(text: str, places: list[int]) -> list[str]:
    borders = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[first:end] for first, end in itertools.pairwise(borders)]


@settings(max_examples=300)
@given(answer=st.sampled_from(ANSWERS), places=st.lists(st.integers(0, 10_000), max_size=12))
def test_an_answer_reads_the_same_however_it_is_cut(answer: Answer, places: list[int]) -> None:
    pieces = cut(answer.text, places)
    assert joined(read(parser_of(answer), pieces)) == joined(read(parser_of(answer), [answer.text]))


DIALECTS = [*CALLS, HARMONY]
MARKS = sorted({mark for name in DIALECTS for mark in dialect_of(name, "think").marks})
FRAGMENTS = [
    *MARKS,
    "{", "}", "[", "]", '"', "\\", ":", ",", "(", ")", "=", "name", "arguments", "now", "call:", "<function=", "</function>",
    "<parameter=", "</parameter>", ">", " ", "\n", "x", "1", "é", "🙂", '{"name": "now", "arguments": ', "<think>", "```json\n",
]  # fmt: skip


@settings(max_examples=600)
@given(
    calls=st.sampled_from(DIALECTS),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=25),
    places=st.lists(st.integers(0, 10_000), max_size=8),
)
def test_any_text_reads_the_same_however_it_is_cut(calls: str, fragments: list[str], places: list[int]) -> None:
    """Also text that is nearly a call: what is shown of it must not depend on luck."""
    text = "".join(fragments)
    answer = Answer("", calls, text, think="think")
    whole, pieces = parser_of(answer), parser_of(answer)
    assert joined(read(pieces, cut(text, places))) == joined(read(whole, [text]))
    assert pieces.num_malformed == whole.num_malformed
    assert pieces.reasoning_spans == whole.reasoning_spans


@settings(max_examples=400)
@given(answer=st.sampled_from(ANSWERS), length=st.integers(0, 10_000))
def test_an_answer_cut_short_invents_nothing(answer: Answer, length: int) -> None:
    """A cut inside of a mark is left out: what is there of the mark is text then."""
    text = answer.text[: length % (len(answer.text) + 1)]
    ends = [*MARKS, "</parameter>", "</｜DSML｜parameter>"]
    assume(not any(text.endswith(mark[:count]) for mark in ends for count in range(1, len(mark))))
    parts = read(parser_of(answer), [text])
    made = calls_of(parts)
    whole = calls_of(read(parser_of(answer), [answer.text]))
    assert len(made) <= len(whole)
    for (name, arguments), (whole_name, whole_arguments) in zip(made, whole, strict=False):
        assert name == whole_name
        assert whole_arguments.startswith(arguments)
    for part in parts:
        if isinstance(part, Content | Reasoning):
            assert part.text.strip() in answer.text


@pytest.mark.parametrize(("calls", "text"), MALFORMED)
def test_what_is_no_call_comes_back_as_it_was_written(calls: str, text: str) -> None:
    parser = dialect_of(calls).parser(TOOLS, in_reasoning=False)
    assert parser is not None
    assert joined(read(parser, [text])) == [Content(text)]


def test_a_malformed_call_is_counted_and_does_not_hide_a_good_one() -> None:
    parser = parser_of(Answer("", "hermes", ""))
    good = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    parts = read(parser, ["<tool_call>now</tool_call>\n" + good])
    assert text_of(parts, Content) == "<tool_call>now</tool_call>"
    assert calls_of(parts) == [("now", "{}")]
    assert parser.num_malformed == 1


@pytest.mark.parametrize("name", BY_NAME)
def test_without_tools_calls_are_text(name: str) -> None:
    answer = BY_NAME[name]
    parser = dialect_of(answer.calls, answer.think).parser({}, in_reasoning=answer.in_reasoning)
    if parser is not None:
        assert calls_of(read(parser, [answer.text])) == []


def test_arguments_are_passed_on_while_they_come() -> None:
    for name in ("hermes nested", "qwen3 coder", "glm code"):
        answer = BY_NAME[name]
        parser = parser_of(answer)
        half = answer.text.index("return")
        early = parser.feed(answer.text[:half])
        assert "def f" in "".join(part.text for part in early if isinstance(part, CallArguments)), name


@pytest.mark.parametrize("name", [*CALLS, HARMONY])
def test_what_a_grammar_is_told_to_force_is_read_as_calls(name: str) -> None:
    dialect = dialect_of(name)
    form = dialect.call_form
    assert form is not None
    call = [form.begin_of(tool) + '{"city": "Paris"}' + form.end for tool in ("get_weather", "now")]
    parser = dialect.parser(TOOLS, in_reasoning=False)
    assert parser is not None
    parts = read(parser, [form.before + form.separator.join(call) + form.after])
    expected = [("get_weather", '{"city": "Paris"}'), ("now", '{"city": "Paris"}')]
    if name == HARMONY:  # a call ends its answer
        parts = read(dialect.parser(TOOLS, in_reasoning=False), [call[0]])  # type: ignore[arg-type]
        expected = expected[:1]
    assert [(called, json.dumps(json.loads(text))) for called, text in calls_of(parts)] == expected
    assert text_of(parts, Content) == ""


@pytest.mark.parametrize("marks", REASONING)
def test_a_prompt_that_ends_inside_of_reasoning_is_known(marks: str) -> None:
    dialect = detect("", None, marks)
    start, end = REASONING[marks].start, REASONING[marks].end
    assert dialect.opens_reasoning(f"<|assistant|>{start}\n")
    assert not dialect.opens_reasoning(f"<|assistant|>{start}\n\n{end}\n\n")
    assert not dialect.opens_reasoning(f"what does {start} mean?<|assistant|>")
    assert dialect.opens_reasoning(f"{start}I see", continued=f"{start}I see")
    assert not dialect.opens_reasoning(f"{start}I see{end}Yes", continued=f"{start}I see{end}Yes")


def test_no_mark_of_a_dialect_is_part_of_another() -> None:
    """A shorter one would be found before the longer is there."""
    for name in DIALECTS:
        marks = dialect_of(name, "think").marks
        assert not [(one, other) for one in marks for other in marks if one != other and one in other]
