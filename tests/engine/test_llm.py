"""Promises of LLM: vLLM's shapes, on a real engine process and a small model whose answers `transformers` knows."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from small_model import EOS, SmallModel

from trivium import LLM, SamplingParams
from trivium.llm.outputs import RequestOutput
from trivium.types.errors import EngineDeadError, InvalidRequestError, ModelFileError, NeverFitsError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def letters(llm: LLM) -> list[int]:
    """Tokens whose text is plain, so that what is made of them can be sought for strings."""
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    return [
        token
        for token in range(tokenizer.vocab_size)
        if tokenizer.token_text(token).isalpha() and tokenizer.token_text(token).isascii()
    ]


def only(outputs: list[RequestOutput]) -> RequestOutput:
    (output,) = outputs
    return output


def oracle_logprobs(model: SmallModel, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model.oracle(torch.tensor([tokens])).logits[0], dim=-1)


def test_prompts_in_every_shape_give_results_in_order(llm: LLM, small_model: SmallModel) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    ids = tokenizer.encode("hello there")
    alone = only(llm.generate("hello there", GREEDY))
    assert alone.prompt == "hello there"
    assert alone.prompt_token_ids == ids
    assert alone.finished
    with torch.inference_mode():
        expected = small_model.oracle.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=12, min_new_tokens=12
        )
    assert alone.outputs[0].token_ids == expected[0, len(ids) :].tolist()
    shapes = ["hello there", {"prompt": "hello there"}, {"prompt_token_ids": ids}, ids, "three roads"]
    outputs = llm.generate(shapes, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs[:4]] == [alone.outputs[0].token_ids] * 4
    assert [output.prompt for output in outputs] == ["hello there", "hello there", None, None, "three roads"]
    assert len({output.request_id for output in outputs}) == 5
    assert llm.generate([], GREEDY) == []


def test_the_text_is_that_of_the_tokens(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    completion = only(llm.generate("the fox", SamplingParams(seed=1, max_tokens=40, ignore_eos=True))).outputs[0]
    assert completion.text == tokenizer.decode(completion.token_ids)
    assert completion.finish_reason == "length"
    assert completion.stop_reason is None
    assert only(llm.generate("the fox", SamplingParams(max_tokens=3, detokenize=False))).outputs[0].text == ""


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 5, 3)]
    outputs = llm.generate(["a", "b", "c"], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    with pytest.raises(InvalidRequestError, match="2 for 3 prompts"):
        llm.generate(["a", "b", "c"], params[:2])


def test_a_seed_gives_the_same_answers_again_and_no_seed_does_not(llm: LLM) -> None:
    seeded = SamplingParams(n=3, seed=42, max_tokens=16, ignore_eos=True)
    first, second = (only(llm.generate("hello", seeded)) for _ in range(2))
    texts = [completion.token_ids for completion in first.outputs]
    assert texts == [completion.token_ids for completion in second.outputs]
    assert len({tuple(tokens) for tokens in texts}) == 3
    assert [completion.index for completion in first.outputs] == [0, 1, 2]
    free = SamplingParams(max_tokens=16, ignore_eos=True)
    one, other = (only(llm.generate("hello", free)).outputs[0].token_ids for _ in range(2))
    assert one != other


def test_stop_strings_end_the_answer_where_they_begin(llm: LLM) -> None:
    plain = SamplingParams(seed=7, max_tokens=60, allowed_token_ids=letters(llm), ignore_eos=True)
    whole = only(llm.generate("one place", plain)).outputs[0]
    stop = whole.text[20:23]
    end = whole.text.index(stop)
    for include in (False, True):
        params = plain.clone()
        params.stop, params.include_stop_str_in_output = ["no such thing", stop], include
        stopped = only(llm.generate("one place", params)).outputs[0]
        assert stopped.text == whole.text[: end + (len(stop) if include else 0)]
        assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
        assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
        tokenizer = llm.get_tokenizer()
        assert tokenizer is not None
        # The last token is the one that completes the stop string.
        assert stop in tokenizer.decode(stopped.token_ids)
        assert stop not in tokenizer.decode(stopped.token_ids[:-1])


def test_a_stop_string_ends_one_of_n_and_not_the_others(llm: LLM) -> None:
    plain = SamplingParams(n=3, seed=8, max_tokens=40, allowed_token_ids=letters(llm), ignore_eos=True)
    whole = only(llm.generate("one place", plain)).outputs
    stop = whole[1].text[10:16]
    params = plain.clone()
    params.stop = stop
    stopped = only(llm.generate("one place", params)).outputs
    assert stopped[1].text == whole[1].text[: whole[1].text.index(stop)]
    for other in (0, 2):
        assert stop not in whole[other].text, "choose another seed"
        assert stopped[other].text == whole[other].text


def test_stop_tokens_and_end_tokens(llm: LLM) -> None:
    free = SamplingParams(seed=3, max_tokens=40, ignore_eos=True)
    tokens = only(llm.generate("the dog", free)).outputs[0].token_ids
    stop = tokens[9]
    params = free.clone()
    params.stop_token_ids = [stop]
    stopped = only(llm.generate("the dog", params)).outputs[0]
    assert stopped.token_ids == tokens[: tokens.index(stop) + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    ended = only(llm.generate("the dog", SamplingParams(max_tokens=40, logit_bias={EOS: 100}))).outputs[0]
    assert (ended.token_ids, ended.text) == ([EOS], "")
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)
    later = only(llm.generate("the dog", SamplingParams(max_tokens=40, min_tokens=5, logit_bias={EOS: 100}))).outputs[0]
    assert len(later.token_ids) == 6
    ignored = only(llm.generate("the dog", SamplingParams(max_tokens=5, ignore_eos=True, logit_bias={EOS: 100})))
    assert ignored.outputs[0].token_ids == [EOS] * 5


def test_logprobs_are_those_of_the_model(llm: LLM, small_model: SmallModel) -> None:
    params = SamplingParams(seed=5, max_tokens=8, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    output = only(llm.generate("three roads meet", params))
    completion = output.outputs[0]
    tokens = output.prompt_token_ids + completion.token_ids
    expected = oracle_logprobs(small_model, tokens)
    assert completion.logprobs is not None
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    told = [*output.prompt_logprobs[1:], *completion.logprobs]
    for position, entry in enumerate(told):
        assert entry is not None
        num_top = 2 if position < len(output.prompt_token_ids) - 1 else 3
        top = expected[position].topk(num_top).indices.tolist()
        token = tokens[position + 1]
        assert list(entry) == [token, *[other for other in top if other != token]]
        for other, logprob in entry.items():
            assert logprob.logprob == pytest.approx(expected[position, other].item(), abs=1e-4)
            assert logprob.rank == int((expected[position] > expected[position, other]).sum()) + 1
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    assert completion.logprobs[0][completion.token_ids[0]].decoded_token == tokenizer.token_text(
        completion.token_ids[0]
    )
    total = math.fsum(
        entry[token].logprob for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)
    )
    assert completion.cumulative_logprob == pytest.approx(total)


def test_all_logprobs_may_be_asked_for(llm: LLM) -> None:
    output = only(llm.generate("a", SamplingParams(max_tokens=1, logprobs=-1)))
    assert output.outputs[0].logprobs is not None
    assert len(output.outputs[0].logprobs[0]) == llm.card.vocab_size


def test_bad_words_are_not_said_with_or_without_a_space_before(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    (hello,), (_, *after_space) = tokenizer.encode("hello", False), (0, *tokenizer.encode(" hello", False))
    wanted = {hello: 100.0, after_space[-1]: 100.0}
    said = only(llm.generate("x", SamplingParams(max_tokens=4, temperature=0, logit_bias=wanted))).outputs[0].text
    assert "hello" in said
    params = SamplingParams(max_tokens=8, temperature=0, logit_bias=wanted, bad_words=["hello"])
    assert "hello" not in only(llm.generate("x", params)).outputs[0].text


def test_streaming_tells_what_generate_returns(llm: LLM) -> None:
    params = SamplingParams(
        n=2, seed=9, max_tokens=50, logprobs=1, prompt_logprobs=0, stop=["zzz"], allowed_token_ids=letters(llm)
    )
    whole = only(llm.generate("quick brown", params))
    outputs = list(llm.stream("quick brown", params))
    last = outputs[-1]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert last.prompt_logprobs == whole.prompt_logprobs
    for index, completion in enumerate(whole.outputs):
        states = [output.outputs[index] for output in outputs]
        assert states[-1].text == completion.text == "".join(state.delta.text for state in states)
        assert states[-1].token_ids == completion.token_ids
        assert [token for state in states for token in state.delta.token_ids] == completion.token_ids
        assert [entry for state in states for entry in state.delta.logprobs] == completion.logprobs
        assert states[-1].finish_reason == completion.finish_reason
        texts = [state.text for state in states]
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_leaving_a_stream_gives_everything_back(llm: LLM) -> None:
    for _ in llm.stream("hello", SamplingParams(max_tokens=200, ignore_eos=True)):
        break
    while (stats := llm.stats().scheduler).running:
        pass
    assert (stats.waiting, stats.held_blocks) == (0, 0)


def test_chat_renders_the_models_template(llm: LLM) -> None:
    conversations = [[{"role": "user", "content": "hello"}], [{"role": "user", "content": "three"}]]
    outputs = llm.chat(conversations, GREEDY)
    assert outputs[0].prompt == "<s><|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert outputs[0].prompt_token_ids[:2] == [0, 2]  # one <s>, from the template
    alone = only(llm.chat(conversations[1], GREEDY))
    assert alone.outputs[0].token_ids == outputs[1].outputs[0].token_ids
    unfinished = only(llm.chat(conversations[0], GREEDY, add_generation_prompt=False))
    assert unfinished.prompt == "<s><|im_start|>user\nhello<|im_end|>\n"


def test_a_prefix_met_before_is_found_again(llm: LLM) -> None:
    prompt = list(range(10, 90))
    first = only(llm.generate([prompt], GREEDY))
    second = only(llm.generate([prompt], GREEDY))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 64)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids


def test_metrics_are_in_order(llm: LLM) -> None:
    metrics = only(llm.generate("a", GREEDY)).metrics
    assert metrics.first_token_time and metrics.last_token_time and metrics.finished_time
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.last_token_time <= metrics.finished_time


@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [
        ([5, 384], {}, "prompt has the token id 384, which is outside the vocabulary of 384"),
        ([-1], {}, "token id -1"),
        ([[]], {}, "the prompt has no tokens"),
        ("a", {"logit_bias": {999: 1.0}}, "logit_bias has the token id 999"),
        ("a", {"allowed_token_ids": [999]}, "allowed_token_ids has the token id 999"),
        ("a", {"stop_token_ids": [999]}, "stop_token_ids has the token id 999"),
        ("a", {"logprobs": 400}, "logprobs must be at most 384"),
        ({"text": "a"}, {}, "a prompt must be a string"),
        ([["a", 1]], {}, "a prompt must be a string"),
        ("\ud800", {}, "surrogate"),
    ],
)
def test_what_is_wrong_with_a_request_is_said_before_it_is_sent(
    llm: LLM, prompt: object, params: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        llm.generate(prompt, SamplingParams(**params))  # type: ignore[arg-type]


def test_a_context_too_long_is_refused_with_the_three_numbers(llm: LLM) -> None:
    with pytest.raises(NeverFitsError) as error:
        llm.generate([[5] * 250], SamplingParams(max_tokens=7))
    assert (error.value.num_prompt_tokens, error.value.num_new_tokens, error.value.limit) == (250, 7, 256)
    with pytest.raises(NeverFitsError):
        llm.generate([[5] * 256], SamplingParams(max_tokens=None))
    filled = only(llm.generate([[5] * 250], SamplingParams(max_tokens=None, ignore_eos=True)))
    assert len(filled.outputs[0].token_ids) == 6
    cut = only(llm.generate([[5] * 300], SamplingParams(max_tokens=4, truncate_prompt_tokens=-1)))
    assert len(cut.prompt_token_ids) == 252


def test_threads_share_one_engine(llm: LLM) -> None:
    expected = [output.outputs[0].token_ids for output in llm.generate(["a", "b", "c", "d"], GREEDY)]
    found: dict[int, list[int]] = {}

    def ask(place: int, prompt: str) -> None:
        found[place] = only(llm.generate(prompt, GREEDY)).outputs[0].token_ids

    threads = [threading.Thread(target=ask, args=item) for item in enumerate("abcd")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[place] for place in range(4)] == expected


@pytest.fixture(scope="module")
def short_queue_llm(small_model: SmallModel) -> Iterator[LLM]:
    directory = str(small_model.directory)
    with LLM(
        directory, dtype="float32", kv_cache_dtype="float32", num_threads=1, kv_cache_bytes=8 << 20, max_waiting=3
    ) as llm:
        yield llm
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("a", GREEDY)


def test_more_prompts_than_may_queue_are_all_answered(short_queue_llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, n=2, ignore_eos=True)
    outputs = short_queue_llm.generate([[5 + i] for i in range(40)], params)
    assert [output.prompt_token_ids for output in outputs] == [[5 + i] for i in range(40)]
    assert all(len(completion.token_ids) == 3 for output in outputs for completion in output.outputs)


def test_an_engine_killed_under_a_request_is_noticed_and_replaced(short_queue_llm: LLM) -> None:
    pid = short_queue_llm.engine_pid
    assert pid is not None
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        for _ in short_queue_llm.stream([5], SamplingParams(max_tokens=200, ignore_eos=True)):
            os.kill(pid, signal.SIGKILL)
    assert len(only(short_queue_llm.generate([[5]], GREEDY)).outputs[0].token_ids) == 12
    assert short_queue_llm.engine_pid != pid


def test_a_model_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ModelFileError, match="no-such-model"):
        LLM("/no-such-model")


def test_a_configuration_alone_is_enough_to_measure_a_shape(small_model: SmallModel, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((small_model.directory / "config.json").read_text())
    with LLM(
        str(tmp_path), load_format="dummy", skip_tokenizer_init=True, num_threads=1, kv_cache_bytes=8 << 20
    ) as llm:
        completion = only(llm.generate({"prompt_token_ids": [5, 6, 7]}, GREEDY)).outputs[0]
        assert (len(completion.token_ids), completion.text) == (12, "")
        assert llm.get_tokenizer() is None
        for prompt, params in (("text", {}), ([5], {"stop": "x"}), ([5], {"bad_words": ["x"]})):
            with pytest.raises(InvalidRequestError, match="skip_tokenizer_init"):
                llm.generate(prompt, SamplingParams(**params))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="skip_tokenizer_init"):
            llm.chat([{"role": "user", "content": "x"}])
