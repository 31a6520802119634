"""Embeddings, scores and rankings, against the hidden states that transformers computes with the same weights."""

from __future__ import annotations

import base64
import math
import struct
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest
from openapi_schemas import assert_conforms
from server_process import ServerProcess
from tiny_model import CONTEXT, MODEL

PATH = "/v1/embeddings"
TEXTS = ["the quick brown fox", "Hello, world!", "你好 🙂 naïve café", "the lazy dog"]


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[list[float]]:
    """The state of each text's last token after the final norm, with norm 1."""
    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaModel

    model = LlamaModel.from_pretrained(tiny_model, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    with torch.inference_mode():
        states = [model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0, -1] for text in TEXTS]
    return [(state / state.norm()).tolist() for state in states]


def vectors(server: ServerProcess, **fields: Any) -> list[list[float]]:
    response = server.post(PATH, {"model": MODEL, **fields})
    assert response.status_code == 200, response.text
    return [entry["embedding"] for entry in response.json()["data"]]


def same(one: list[list[float]], other: list[list[float]]) -> bool:
    """But for rounding, which may differ between batches where plain torch computes."""
    return len(one) == len(other) and all(a == pytest.approx(b, abs=1e-5) for a, b in zip(one, other, strict=True))


def cosine(one: list[float], other: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def test_m1_embeddings_are_the_models_own(server: ServerProcess, expected: list[list[float]]) -> None:
    for found, wanted in zip(vectors(server, input=TEXTS), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)


def test_m1_answers_conform_to_openais_document(server: ServerProcess) -> None:
    assert_conforms(server.post("/v1/embeddings", {"input": TEXTS}).json(), "CreateEmbeddingResponse")


def test_m1_the_client_gets_base64_and_reads_it(client: openai.OpenAI, server: ServerProcess) -> None:
    """It asks for base64 where its user asks for nothing."""
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert [entry.index for entry in answer.data] == [0, 1, 2, 3]
    assert same([entry.embedding for entry in answer.data], vectors(server, input=TEXTS, encoding_format="float"))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    (raw,) = vectors(server, input="Hello, world!", encoding_format="base64")
    packed = base64.b64decode(raw)  # type: ignore[arg-type]
    assert same([list(struct.unpack(f"<{len(packed) // 4}f", packed))], [answer.data[1].embedding])


def test_m1_tokens_are_taken_for_text(server: ServerProcess) -> None:
    ids = [server.post("/tokenize", {"prompt": text}).json()["tokens"] for text in TEXTS[:2]]
    assert same(vectors(server, input=ids), vectors(server, input=TEXTS[:2]))
    assert same(vectors(server, input=ids[0]), vectors(server, input=TEXTS[0]))


def test_m1_fewer_dimensions_are_the_first_ones_with_norm_1(server: ServerProcess) -> None:
    (whole,), (cut,) = vectors(server, input="fox"), vectors(server, input="fox", dimensions=8)
    norm = math.sqrt(cosine(whole[:8], whole[:8]))
    assert cut == pytest.approx([value / norm for value in whole[:8]], abs=1e-6)
    assert cosine(whole, whole) == pytest.approx(1, abs=1e-5)


def test_m1_a_text_has_one_embedding_whatever_else_is_asked(server: ServerProcess) -> None:
    """Alone, beside others, and with its beginning in the cache."""
    (alone,) = vectors(server, input=TEXTS[0] + " jumps")
    beside = vectors(server, input=[TEXTS[1], TEXTS[0] + " jumps", *TEXTS])
    assert same([beside[1]], [alone])
    long = "the quick brown fox jumps over the lazy dog " * 20
    assert same(vectors(server, input=long), vectors(server, input=long))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [10**6]}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 65}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({}, None),
    ],
)
def test_m1_what_cannot_be_embedded_is_refused_by_name(
    server: ServerProcess, fields: dict[str, Any], param: str | None
) -> None:
    response = server.post(PATH, {"model": MODEL, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_m1_a_text_that_does_not_fit_is_refused_with_the_numbers(server: ServerProcess) -> None:
    error = server.post(PATH, {"model": MODEL, "input": "z" * (CONTEXT * 3)}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert str(CONTEXT) in error["message"]


def test_m4_documents_are_ranked_by_their_likeness(server: ServerProcess, expected: list[list[float]]) -> None:
    wanted = [cosine(expected[0], other) for other in expected[1:]]
    asked = {"model": MODEL, "query": TEXTS[0], "documents": [TEXTS[1], {"text": TEXTS[2]}, TEXTS[3]]}
    answer = server.post("/v1/rerank", asked).json()
    order = [result["index"] for result in answer["results"]]
    assert order == sorted(range(3), key=lambda index: -wanted[index])
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(wanted[result["index"]], abs=1e-4)
        assert result["document"]["text"] == TEXTS[1 + result["index"]]
    assert answer["usage"]["total_tokens"] > 0 and answer["id"]
    best = server.post("/v1/rerank", {**asked, "top_n": 1, "return_documents": False}).json()["results"]
    assert [set(result) for result in best] == [{"index", "relevance_score"}] and best[0]["index"] == order[0]
    plain = server.post("/rerank", {"query": TEXTS[0], "texts": TEXTS[1:]}).json()
    assert [entry["index"] for entry in plain] == order and set(plain[0]) == {"index", "score"}
    assert server.post("/v1/rerank", {"query": "x", "documents": []}).status_code == 400


def test_scores_compare_one_with_many_and_pair_by_pair(server: ServerProcess, expected: list[list[float]]) -> None:
    many = server.post("/v1/score", {"model": MODEL, "text_1": TEXTS[0], "text_2": TEXTS[1:]}).json()["data"]
    wanted = [cosine(expected[0], other) for other in expected[1:]]
    assert [entry["score"] for entry in many] == pytest.approx(wanted, abs=1e-4)
    (pair,) = server.post("/v1/score", {"text_1": [TEXTS[0]], "text_2": [TEXTS[0]]}).json()["data"]
    assert pair["score"] == pytest.approx(1, abs=1e-5)
    assert server.post("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}).status_code == 400


def test_o10_ollamas_client_gets_the_same(server: ServerProcess) -> None:
    client = ollama.Client(server.url, timeout=60)
    answer = client.embed(MODEL, TEXTS)
    assert same([list(vector) for vector in answer.embeddings], vectors(server, input=TEXTS))
    assert answer.prompt_eval_count and answer.total_duration
    assert same([list(client.embeddings(MODEL, TEXTS[0]).embedding)], [list(answer.embeddings[0])])
    assert len(client.embed(MODEL, "z" * (CONTEXT * 3)).embeddings) == 1
    with pytest.raises(ollama.ResponseError):
        client.embed(MODEL, "z" * (CONTEXT * 3), truncate=False)


def test_embeddings_give_back_what_they_held(server: ServerProcess) -> None:
    vectors(server, input=[f"text number {number}" for number in range(40)])
    server.wait_until_idle()
