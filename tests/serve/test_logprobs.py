"""Log probabilities on the wire, against transformers on the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from server_process import ServerProcess
from tiny_model import MODEL

TEXT = "Hello, world! naïve 你好 🙂 the quick brown fox"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def oracle(tiny_model: Path):  # type: ignore[no-untyped-def]
    """Token ids -> log probabilities of the next token at each position, by transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)

    def logprobs(tokens: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([tokens])).logits[0].log_softmax(-1)

    return logprobs


def chat(server: ServerProcess, **fields: object) -> dict:
    answer = server.post("/v1/chat/completions", {**CHAT, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def completion(server: ServerProcess, **fields: object) -> dict:
    answer = server.post("/v1/completions", {"model": MODEL, "prompt": TEXT, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def ids(server: ServerProcess, text: str) -> list[int]:
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def test_l1_chat_logprobs_have_their_shape(server: ServerProcess) -> None:
    logprobs = chat(server, logprobs=True)["logprobs"]
    assert set(logprobs) == {"content", "refusal"} and logprobs["refusal"] is None
    assert len(logprobs["content"]) == 24
    for entry in logprobs["content"]:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["top_logprobs"] == []


def test_l2_bytes_joined_are_the_text(server: ServerProcess) -> None:
    for seed in range(6):
        choice = chat(server, logprobs=True, temperature=1.3, seed=seed)
        joined = b"".join(bytes(entry["bytes"] or ()) for entry in choice["logprobs"]["content"])
        assert joined.decode("utf-8", "replace") == choice["message"]["content"]


def test_l2_the_end_token_is_listed_and_adds_nothing_to_the_text(server: ServerProcess) -> None:
    choice = chat(server, logprobs=True, ignore_eos=False, allowed_token_ids=[2])
    (entry,) = choice["logprobs"]["content"]
    assert (entry["token"], entry["bytes"], choice["message"]["content"]) == ("<|im_end|>", None, "")


def test_l3_logprobs_are_the_models_own_whatever_is_drawn_by(server: ServerProcess, oracle) -> None:  # type: ignore[no-untyped-def]
    drawn = {"temperature": 1.9, "presence_penalty": 2, "top_k": 50, "seed": 5, "logprobs": 3, "max_tokens": 12}
    choice = completion(server, **drawn)
    tokens = ids(server, TEXT)
    for name, told in zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], strict=True):
        expected = oracle(tokens)[-1]
        token = next(t for t in expected.argsort(descending=True).tolist() if abs(expected[t] - told) < 1e-3)
        assert told == pytest.approx(expected[token].item(), abs=1e-3), name
        tokens.append(token)


def test_l3_what_cannot_be_is_still_a_number(server: ServerProcess) -> None:
    for entry in chat(server, logprobs=True, top_logprobs=20)["logprobs"]["content"]:
        assert all(-9999.0 <= top["logprob"] <= 0 for top in entry["top_logprobs"])


def test_l4_there_are_exactly_k_alternatives_in_falling_order(server: ServerProcess) -> None:
    for k in (1, 5, 20):
        for entry in chat(server, logprobs=True, top_logprobs=k, temperature=2)["logprobs"]["content"]:
            values = [top["logprob"] for top in entry["top_logprobs"]]
            assert len(values) == k
            assert values == sorted(values, reverse=True)
            assert entry["logprob"] <= values[0] + 1e-6


@pytest.mark.parametrize("k", [0, 1, 5])
def test_l5_the_four_lists_are_of_one_length(server: ServerProcess, k: int) -> None:
    logprobs = completion(server, logprobs=k, max_tokens=10, temperature=1.5, ignore_eos=True)["logprobs"]
    assert {len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {10}
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == logprob
        assert max(k, 1) <= len(top) <= k + 1


@pytest.mark.parametrize("echo", [True, False])
@pytest.mark.parametrize("prompt", [TEXT, "plain", "<|im_start|>user\nHello<|im_end|>\n"])
def test_l5_offsets_point_into_the_returned_text(server: ServerProcess, prompt: str, echo: bool) -> None:
    choice = completion(server, prompt=prompt, echo=echo, logprobs=1, max_tokens=8, seed=1, temperature=1)
    logprobs = choice["logprobs"]
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:") and token != "<|im_end|>":
            assert choice["text"].startswith(token, offset), (token, offset)


def test_l6_echoed_logprobs_are_those_of_transformers(server: ServerProcess, oracle) -> None:  # type: ignore[no-untyped-def]
    tokens = ids(server, TEXT)
    expected = oracle(tokens)
    for max_tokens in (0, 1):
        choice = completion(server, echo=True, logprobs=1, max_tokens=max_tokens)
        logprobs = choice["logprobs"]
        assert choice["text"].startswith(TEXT)
        assert len(logprobs["tokens"]) == len(tokens) + max_tokens
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        told = logprobs["token_logprobs"][1 : len(tokens)]
        assert told == pytest.approx([expected[i, tokens[i + 1]].item() for i in range(len(tokens) - 1)], abs=1e-3)


def test_l6_lm_evals_reading_finds_greedy_continuations(server: ServerProcess, oracle) -> None:  # type: ignore[no-untyped-def]
    """As lm-eval does: one prompt of context and continuation as ids, `[context:-1]`, and the top list's maximum."""
    context = ids(server, TEXT)
    tokens = list(context)
    for _ in range(6):
        tokens.append(oracle(tokens)[-1].argmax().item())
    for continuation, greedy in ((tokens, True), ([*tokens[:-1], (tokens[-1] + 1) % 300], False)):
        logprobs = completion(server, prompt=continuation, echo=True, logprobs=1, max_tokens=1)["logprobs"]
        window = slice(len(context), -1)
        values, tops, names = (logprobs[key][window] for key in ("token_logprobs", "top_logprobs", "tokens"))
        expected = oracle(continuation)
        total = sum(expected[i - 1, continuation[i]].item() for i in range(len(context), len(continuation)))
        assert sum(values) == pytest.approx(total, abs=1e-3)
        assert all(top[name] == max(top.values()) for name, top in zip(names, tops, strict=True)) == greedy
