"""llguidance, which bounds answers here, beside xgrammar: which JSON schemas each takes, what it lets through, what it costs.

    pip install --no-deps xgrammar apache-tvm-ffi  # and what the tests need: pip install -e .[test]
    python bench/grammar_matchers.py [--model smollm2] [--drawn 300]

The schemas are those of tests/unit/grammar/random_schemas.py. Texts are written by drawing among the tokens that each mask
allows, and those that end are held to the schema by `jsonschema`. Times are of the processor, on one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xgrammar
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from llguidance import LLMatcher

from trivium.formats.source import open_source
from trivium.grammar.limits import GrammarLimits
from trivium.grammar.translate import translate
from trivium.grammar.trial import parser_limits
from trivium.grammar.vocabulary import read_vocabulary
from trivium.store import ModelStore
from trivium.text.tokenizer import Tokenizer
from trivium.types.request import Grammar, GrammarKind

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "grammar"))
from random_schemas import PICKED, random_schema

MAX_TOKENS = 200  # of a text


class Writer(Protocol):
    """At the beginning of a text."""

    def mask(self) -> np.ndarray: ...  # bits, one for each token

    def take(self, token: int) -> None: ...


Compile = Callable[[str], Writer]  # from a JSON schema; raises where it is not taken


class ByLlguidance:
    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self) -> np.ndarray:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())
        return bits

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)


class ByXgrammar:
    def __init__(self, compiled: xgrammar.CompiledGrammar, vocab_size: int) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bits = np.zeros((1, -(-vocab_size // 32)), dtype=np.int32)

    def mask(self) -> np.ndarray:
        if not self._matcher.fill_next_token_bitmask(self._bits):
            self._bits.fill(-1)  # all are allowed
        return self._bits.view(np.uint8)[0]

    def take(self, token: int) -> None:
        assert self._matcher.accept_token(token)


@dataclass
class Tally:
    taken: int = 0
    ended: int = 0
    wrong: list[str] = field(default_factory=list)  # schemas whose text did not validate
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)


class Tokens:
    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self.tokenizer = tokenizer
        self.num = tokenizer.vocab_size
        self.end = tokenizer.eos_ids[0]
        self.are_text = np.array([not tokenizer.is_special(id) for id in ids])
        self.close = np.array([bool(set(tokenizer.token_bytes(id)) & set(b'"]}')) for id in ids]) & self.are_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--drawn", type=int, default=300, help="schemas drawn at random, beside those that are picked")
    args = parser.parse_args()
    with open_source(ModelStore().resolve(args.model)) as source:
        tokenizer = Tokenizer.from_source(source)
    schemas: dict[str, Any] = PICKED | {f"drawn {seed}": random_schema(seed) for seed in range(args.drawn)}
    matchers: dict[str, Compile] = {
        "llguidance": by_llguidance(ModelStore().resolve(args.model), tokenizer),
        "xgrammar": by_xgrammar(tokenizer),
    }
    tallies, tokens = {name: Tally() for name in matchers}, Tokens(tokenizer)
    for name, schema in schemas.items():
        for matcher, compile in matchers.items():
            measure(tallies[matcher], compile, name, schema, tokens)
    print(f"{len(schemas)} schemas, {tokenizer.vocab_size} tokens\n")
    print(
        "| | taken | texts that ended | of these not valid | ready after, ms (median, worst) | a mask, µs (median, p99, worst) |"
    )
    print("|---|---|---|---|---|---|")
    for matcher, tally in tallies.items():
        masks = sorted(tally.mask_us)
        print(
            f"| {matcher} | {tally.taken} | {tally.ended} | {len(tally.wrong)} "
            f"| {statistics.median(tally.compile_ms):.2f}, {max(tally.compile_ms):.1f} "
            f"| {statistics.median(masks):.0f}, {masks[len(masks) * 99 // 100]:.0f}, {masks[-1]:.0f} |"
        )
    for matcher, tally in tallies.items():
        print(f"\nnot valid, by {matcher}: {', '.join(tally.wrong) or 'none'}")


def by_llguidance(model: Path, tokenizer: Tokenizer) -> Compile:
    vocabulary, limits = read_vocabulary(model, tokenizer.vocab_size, ()), parser_limits(GrammarLimits())

    def compile(schema: str) -> Writer:
        compiled = translate(Grammar(GrammarKind.JSON_SCHEMA, schema), vocabulary.special_ids)
        matcher = LLMatcher(vocabulary.matcher_tokens, compiled, log_level=0, limits=limits)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return ByLlguidance(matcher)

    return compile


def by_xgrammar(tokenizer: Tokenizer) -> Compile:
    tokens = [b"" if tokenizer.is_special(id) else tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
    info = xgrammar.TokenizerInfo(tokens, stop_token_ids=list(tokenizer.eos_ids))
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(schema: str) -> Writer:
        return ByXgrammar(compiler.compile_json_schema(schema, max_whitespace_cnt=8), tokenizer.vocab_size)

    return compile


def measure(tally: Tally, compile: Compile, name: str, schema: Any, tokens: Tokens) -> None:
    began = time.process_time()
    try:
        writer = compile(json.dumps(schema))
        writer.mask()  # some is found out only when it is used
    except Exception:
        return
    tally.compile_ms.append((time.process_time() - began) * 1e3)
    tally.taken += 1
    text = written(writer, tokens, tally.mask_us)
    if text is None:
        return
    tally.ended += 1
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))
    except Exception:
        tally.wrong.append(name)


def written(writer: Writer, tokens: Tokens, mask_us: list[float]) -> str | None:
    """A text that is ended as soon as may be more often than not; None: it did not end in time."""
    draw, ids = random.Random(1), list[int]()
    for _ in range(MAX_TOKENS):
        began = time.process_time()
        mask = writer.mask()
        mask_us.append((time.process_time() - began) * 1e6)
        allowed = np.unpackbits(mask, bitorder="little")[: tokens.num].astype(bool)
        others = np.flatnonzero(allowed & tokens.are_text)
        if allowed[tokens.end] and (len(others) == 0 or draw.random() < 0.6):
            return tokens.tokenizer.decode(ids, skip_special_tokens=False)
        # Tokens with a closing mark are few among many: they get half of the draws.
        closing = np.flatnonzero(allowed & tokens.close)
        ids.append(int(draw.choice(closing if len(closing) and draw.random() < 0.5 else others)))
        writer.take(ids[-1])
    return None


if __name__ == "__main__":
    main()
