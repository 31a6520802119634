"""Answers of a given form in the LLM class and in the core: whatever else runs, stops or is taken back meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from small_model import EOS, SmallModel

from trivium import LLM, SamplingParams, StructuredOutputsParams
from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.types.delta import FinishReason
from trivium.types.errors import InvalidRequestError, TriviumError
from trivium.types.request import Grammar, GrammarKind, Request, Sampling, Stopping

PHONE = r"\d{3}-\d{4}"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}
PROMPTS = ["the quick", "three roads meet", "hello", "the lazy dog jumps over"]


def params(seed: int = 0, **form: Any) -> SamplingParams:
    return SamplingParams(
        temperature=1.0, seed=seed, max_tokens=120, structured_outputs=StructuredOutputsParams(**form) if form else None
    )


def free(seed: int = 0) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=20, ignore_eos=True)


def tokens(llm: LLM, prompts: list[str], sampling: list[SamplingParams]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, sampling, use_tqdm=False)]


def test_every_form_is_obeyed_at_temperature_1(llm: LLM) -> None:
    forms: list[tuple[dict[str, Any], str]] = [
        ({"regex": PHONE}, PHONE),
        ({"choice": ["left", "right"]}, "left|right"),
        ({"grammar": 'root ::= "(" [a-c]{3} ")"'}, r"\([a-c]{3}\)"),
        ({"structural_tag": {"format": {"type": "const_string", "value": "so"}}}, "so"),
    ]
    for form, pattern in forms:
        outputs = llm.generate(PROMPTS, [params(seed, **form) for seed in range(4)], use_tqdm=False)
        for output in outputs:
            assert re.fullmatch(pattern, output.outputs[0].text)
            assert output.outputs[0].finish_reason == "stop"
    for output in llm.generate(PROMPTS, [params(seed, json=PERSON) for seed in range(4)], use_tqdm=False):
        person = json.loads(output.outputs[0].text)
        assert len(person["name"]) <= 8 and 0 <= person["age"] <= 99


def test_a_bound_answer_is_the_same_alone_and_in_a_batch(llm: LLM) -> None:
    forms = [{"regex": PHONE}, {"json": PERSON}, {"choice": ["left", "right"]}, {"regex": "[a-f]{30}"}]
    alone = [tokens(llm, [prompt], [params(7, **form)])[0] for prompt, form in zip(PROMPTS, forms, strict=True)]
    together = tokens(llm, PROMPTS * 2, [params(7, **form) for form in forms] + [free(seed) for seed in range(4)])
    assert together[:4] == alone


def test_a_bound_neighbour_changes_nothing_for_others(llm: LLM) -> None:
    alone = tokens(llm, PROMPTS, [free(seed) for seed in range(4)])
    beside = tokens(
        llm, PROMPTS * 2, [free(seed) for seed in range(4)] + [params(seed, json=PERSON) for seed in range(4)]
    )
    assert beside[:4] == alone


def test_the_likeliest_allowed_token_is_taken_at_temperature_0(llm: LLM) -> None:
    """The first digit is the one that the model finds likeliest among digits."""
    every = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1)
    logprobs = llm.generate(PROMPTS[0], every, use_tqdm=False)[0].outputs[0].logprobs
    assert logprobs is not None
    digits = {token: entry.logprob for token, entry in logprobs[0].items() if entry.decoded_token in set("0123456789")}
    best = max(digits, key=lambda token: digits[token])
    bound = SamplingParams(temperature=0.0, max_tokens=5, structured_outputs={"regex": "[0-9] ?"})
    assert tokens(llm, [PROMPTS[0]], [bound])[0][0] == best


def test_n_answers_each_obey_and_differ(llm: LLM) -> None:
    sampling = params(1, regex="[a-z]{12}")
    sampling.n = 4
    texts = [completion.text for completion in llm.generate("the", sampling, use_tqdm=False)[0].outputs]
    assert all(re.fullmatch("[a-z]{12}", text) for text in texts)
    assert len(set(texts)) > 1


def test_other_parameters_hold_within_the_form(llm: LLM) -> None:
    banned = next(iter(llm.get_tokenizer().encode("a", add_special_tokens=False)))
    sampling = SamplingParams(
        temperature=1.0, max_tokens=30, logit_bias={banned: -100.0}, structured_outputs={"regex": "[abc]{6}"}
    )
    assert all("a" not in output.outputs[0].text for output in llm.generate(PROMPTS, sampling, use_tqdm=False))


def test_a_form_and_bans_that_leave_no_token_are_the_requests_own_fault(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=30, min_tokens=20, structured_outputs={"choice": ["a"]})
    with pytest.raises(InvalidRequestError, match="banned"):
        llm.generate("the", sampling, use_tqdm=False)


@pytest.mark.parametrize(
    "form",
    [{}, {"json": PERSON, "regex": "a"}, {"jsn": {}}, {"regex": 3}, {"choice": "ab"}, {"json": {"x": object()}}, 3],
)
def test_a_form_that_is_none_is_refused_before_it_is_sent(form: Any) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        SamplingParams(structured_outputs=form).structured_outputs.lower()  # type: ignore[union-attr]


def test_ignore_eos_and_a_form_exclude_each_other() -> None:
    with pytest.raises(InvalidRequestError, match="ignore_eos"):
        SamplingParams(ignore_eos=True, structured_outputs={"regex": "a"})


def test_a_grammar_that_cannot_be_is_raised_with_its_field(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match='"not"') as caught:
        llm.generate("the", params(json={"not": {}}), use_tqdm=False)
    assert caught.value.param == "structured_outputs"


# The core, step by step


@pytest.fixture
def core(small_model: SmallModel) -> EngineCore:
    return EngineCore(EngineOptions(model=str(small_model.directory), dtype="float32", num_threads=1, max_num_seqs=4))


def request(
    id: str, pattern: str | None, n: int = 1, max_tokens: int = 40, kind: GrammarKind = GrammarKind.REGEX
) -> Request:
    return Request(
        id=id,
        prompt=(5, 6, 7, 8, 9),
        sampling=Sampling(seed=3, grammar=None if pattern is None else Grammar(kind, pattern, param="here")),
        stopping=Stopping(max_tokens=max_tokens, stop_token_ids=(EOS,)),
        arrival=time.monotonic(),
        n=n,
    )


def run(core: EngineCore, disturb: Any = lambda steps: None) -> tuple[dict[tuple[str, int], list[int]], list[Any]]:
    """(tokens by request and index, refusals), with the books checked after every step."""
    found: dict[tuple[str, int], list[int]] = {}
    refusals: list[Any] = []
    steps = 0
    while core.has_work:
        for delta in core.step():
            found.setdefault((delta.request_id, delta.index), []).extend(delta.tokens)
        refusals += core.take_refusals()
        core.assert_balanced()
        steps += 1
        disturb(steps)
    return found, refusals


def test_a_bound_sequence_that_was_preempted_goes_on_as_if_nothing_had_been(core: EngineCore) -> None:
    core.add(request("calm", "[a-f]{20}", n=2))
    calm, _ = run(core)
    core.add(request("torn", "[a-f]{20}", n=2))
    torn, _ = run(core, lambda steps: core.preempt("torn") if steps % 3 == 0 else None)
    assert [torn["torn", index] for index in (0, 1)] == [calm["calm", index] for index in (0, 1)]


@pytest.mark.parametrize("overlap", [False, True])
def test_others_run_while_masks_are_late(small_model: SmallModel, overlap: bool) -> None:
    """The grammar process stands still: the free request comes to its end, the bound one goes on when it can."""
    core = EngineCore(
        EngineOptions(model=str(small_model.directory), dtype="float32", num_threads=1, max_num_seqs=4, overlap=overlap)
    )
    core.add(request("calm", "[a-f]{20}"))
    calm, _ = run(core)
    pid = core.grammars.pid
    assert pid is not None
    core.add(request("bound", "[a-f]{20}"))
    found: dict[str, list[int]] = {"free": [], "bound": [token for delta in core.step() for token in delta.tokens]}
    os.kill(pid, signal.SIGSTOP)
    try:
        core.add(request("free", None, max_tokens=30))
        while len(found["free"]) < 30:
            for delta in core.step():
                found[delta.request_id] += delta.tokens
        assert len(found["bound"]) < 5
    finally:
        os.kill(pid, signal.SIGCONT)
    rest, _ = run(core)
    assert found["bound"] + rest["bound", 0] == calm["calm", 0]
    assert core.grammar_stats().late_masks > 0


def test_others_run_while_a_grammar_is_prepared(core: EngineCore) -> None:
    """The bound request came first, and yet the free one has its tokens before it."""
    core.add(request("warm", "a"))
    run(core)
    assert core.grammars.pid is not None
    (trials,) = map(int, Path(f"/proc/{core.grammars.pid}/task/{core.grammars.pid}/children").read_text().split())
    order: list[str] = []
    os.kill(trials, signal.SIGSTOP)  # it compiles nothing meanwhile
    try:
        core.add(request("bound", '["a", "b"]', kind=GrammarKind.CHOICE))
        core.add(request("free", None, max_tokens=5))
        while not order:
            order += [delta.request_id for delta in core.step() if delta.finish_reason]
    finally:
        os.kill(trials, signal.SIGCONT)
    while core.has_work:
        order += [delta.request_id for delta in core.step() if delta.finish_reason]
    assert order == ["free", "bound"]


def test_a_request_cancelled_while_its_grammar_is_prepared_says_so_once(core: EngineCore) -> None:
    core.add(request("gone", '["a"]', n=3, kind=GrammarKind.CHOICE))
    core.cancel("gone", 1)
    core.cancel("gone")
    ends = []
    while core.has_work:
        ends += [(delta.index, delta.finish_reason) for delta in core.step()]
    assert ends == [(index, FinishReason.CANCELLED) for index in range(3)]
    assert core.take_refusals() == []


def test_one_sequence_cancelled_while_its_grammar_is_prepared_leaves_the_others(core: EngineCore) -> None:
    core.add(request("some", '["a"]', n=2, kind=GrammarKind.CHOICE))
    core.cancel("some", 0)
    ends = {}
    while core.has_work:
        ends |= {delta.index: delta.finish_reason for delta in core.step() if delta.finish_reason}
    assert ends == {0: FinishReason.CANCELLED, 1: FinishReason.STOP}


def test_refusals_are_told_once_and_leave_nothing(core: EngineCore) -> None:
    core.add(request("wrong", "("))
    with pytest.raises(TriviumError, match="already"):
        core.add(request("wrong", "a"))
    found, ((id, error),) = run(core)
    assert found == {} and id == "wrong"
    assert isinstance(error, InvalidRequestError) and error.param == "here"
    assert not core.has_work


def test_what_can_never_fit_is_refused_before_its_grammar_is_looked_at(core: EngineCore) -> None:
    with pytest.raises(TriviumError, match="maximum context length"):
        core.add(request("long", "(", max_tokens=10_000))
