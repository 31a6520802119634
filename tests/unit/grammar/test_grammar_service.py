"""The grammar process: what hostile grammars cannot do to it, what is kept, and what becomes of its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from walker import Walker

from trivium.grammar.limits import GrammarLimits
from trivium.grammar.service import GrammarService
from trivium.types.errors import InvalidRequestError, OverloadedError, RequestFailedError
from trivium.types.request import Grammar, GrammarKind

SMALL = GrammarLimits(text_bytes=1 << 20, compile_seconds=10.0, compile_bytes=64 << 20, kept=2, waiting=4)


@pytest.fixture
def own(tokenizer_directory: Path) -> Iterator[Walker]:
    walker = Walker(tokenizer_directory, SMALL)
    yield walker
    walker.service.close()


def choice(text: str) -> Grammar:
    return Grammar(GrammarKind.CHOICE, json.dumps([text]))


HOSTILE = {
    "nested schema": (GrammarKind.JSON_SCHEMA, '{"items":' * 50_000 + "{}" + "}" * 50_000),
    "nested brackets": (GrammarKind.REGEX, "(" * 100_000 + ")" * 100_000),
    "nested rules": (GrammarKind.RULES, "root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000),
    "nested tags": (GrammarKind.STRUCTURAL_TAG, '{"format":' + '{"type":"star","content":' * 5000 + "{}" + "}" * 5001),
    "many choices": (GrammarKind.JSON_SCHEMA, json.dumps({"enum": list(range(140_000))})),
    "a product of choices": (
        GrammarKind.JSON_SCHEMA,
        json.dumps({"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(4)]} for i in range(16)]}),
    ),
    "repeated repetitions": (GrammarKind.REGEX, "(((((a{100}){100}){100}){100}){100}){100}"),
    "a long repetition": (GrammarKind.RULES, 'root ::= ("ab" | "a" | "b"){1000000}'),
    "half a character": (GrammarKind.JSON_SCHEMA, '{"const": "\\ud800"}'),
    "a loop of references": (GrammarKind.JSON_SCHEMA, '{"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}'),
    "doubled references": (
        GrammarKind.JSON_SCHEMA,
        json.dumps(
            {
                "$ref": "#/$defs/d0",
                "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {}},
            }
        ),
    ),
}


HARMLESS = {"doubled references", "a long repetition"}  # what they say can be followed token by token


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_ends_within_its_limits_and_others_are_served_meanwhile(own: Walker, name: str) -> None:
    """It is refused, or it turns out to be harmless; in either case the process lives and answers others at once."""
    kind, text = HOSTILE[name]
    honest = own.finish(own.service.prepare(choice("honest")))
    hostile = own.service.prepare(Grammar(kind, text))
    other = own.finish(own.service.prepare(choice("another")))
    assert own.write(honest, 0) == "honest"
    assert own.write(other, 0) == "another"
    own.finish(hostile)
    if name in HARMLESS:
        own.write(hostile, 0, max_tokens=20)
    else:
        assert isinstance(hostile.error, InvalidRequestError)


def test_the_limit_that_ended_a_grammar_is_named(tokenizer_directory: Path) -> None:
    text = json.dumps({"enum": list(range(60_000))})
    for limits, named in (
        (GrammarLimits(compile_seconds=0.01), "more than 0.01 s"),
        (GrammarLimits(compile_bytes=1 << 20), "more than 1 MiB"),
    ):
        walker = Walker(tokenizer_directory, limits)
        assert named in walker.why_not(GrammarKind.JSON_SCHEMA, text)
        walker.service.close()


def test_a_grammar_that_is_too_long_is_refused_at_once_with_both_numbers(own: Walker) -> None:
    with pytest.raises(InvalidRequestError, match=f"{1 << 20} bytes at most, but this one has 10000000"):
        own.service.prepare(Grammar(GrammarKind.REGEX, "a" * 10_000_000))


def test_more_than_may_wait_are_refused_for_now(own: Walker) -> None:
    with pytest.raises(OverloadedError):
        for number in range(SMALL.waiting + 1):
            own.service.prepare(choice(str(number)))


def test_the_same_grammar_is_compiled_once(own: Walker) -> None:
    first = own.finish(own.service.prepare(choice("a")))
    again = own.service.prepare(Grammar(GrammarKind.CHOICE, '["a"]', param="elsewhere"))
    assert again is first
    assert (own.service.stats().compiled, own.service.stats().reused) == (1, 1)


def test_a_grammar_that_had_to_make_room_comes_back(own: Walker) -> None:
    prepared = [own.finish(own.service.prepare(choice(text))) for text in ("a", "b", "c", "d")]
    assert [own.write(one, 0) for one in prepared] == ["a", "b", "c", "d"]


def test_rows_have_masks_of_their_own(own: Walker) -> None:
    a, b = (own.finish(own.service.prepare(choice(text))) for text in ("aa", "bb"))
    assert a.compiled is not None and b.compiled is not None
    own.service.open_row(0, a.compiled, ())
    own.service.open_row(3, b.compiled, ())
    assert set(own.allowed(0)).isdisjoint(own.allowed(3))
    own.service.close_row(0)
    own.service.open_row(0, b.compiled, ())
    assert own.allowed(0) == own.allowed(3)


def test_a_row_resumes_after_the_tokens_it_had(own: Walker) -> None:
    prepared = own.finish(own.service.prepare(Grammar(GrammarKind.REGEX, "[ab]{3}c")))
    assert prepared.compiled is not None
    tokens = own.tokenizer.encode("a")
    own.service.open_row(0, prepared.compiled, ())
    own.allowed(0)
    for token in tokens:
        own.service.advance_row(0, token)
    own.service.open_row(1, prepared.compiled, tokens)
    assert own.allowed(0) == own.allowed(1)


def test_the_end_of_the_process_fails_its_rows_and_the_next_grammar_starts_another(own: Walker) -> None:
    prepared = own.finish(own.service.prepare(choice("abc")))
    assert prepared.compiled is not None
    own.service.open_row(0, prepared.compiled, ())
    own.allowed(0)
    pid = own.service.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    own.service.advance_row(0, own.tokenizer.encode("a")[0])
    problem = own.masks(0)[0]
    assert "ended" in problem.why and not problem.is_requests_fault
    own.service.close_row(0)
    assert own.write(prepared, 0) == "abc"
    assert own.service.pid != pid


def test_what_was_being_compiled_when_the_process_ended_fails(own: Walker) -> None:
    own.finish(own.service.prepare(choice("a")))
    pid = own.service.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    waiting = own.service.prepare(choice("b"))
    os.kill(pid, signal.SIGKILL)
    own.finish(waiting)
    assert waiting.compiled is not None or isinstance(waiting.error, RequestFailedError)
    assert own.finish(own.service.prepare(choice("b"))).compiled is not None


def test_the_process_ends_with_its_engine(tokenizer_directory: Path) -> None:
    walker = Walker(tokenizer_directory)
    walker.finish(walker.service.prepare(choice("a")))
    pid = walker.service.pid
    walker.service.close()
    assert pid is not None and not Path(f"/proc/{pid}").exists()


def test_a_model_whose_tokenizer_cannot_be_read_says_why(tmp_path: Path) -> None:
    service = GrammarService(str(tmp_path), vocab_size=100, eos_token_ids=(), num_rows=1)
    preparation = service.prepare(choice("a"))
    while not preparation.is_done:
        service.poll(0.05)
    assert "config.json" in str(preparation.error)
    service.close()
