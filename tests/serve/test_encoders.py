"""Encoder models over HTTP: MiniLM's vectors (fetched once, about 84 MB), and a tiny model that scores pairs of texts."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
import torch
from server_process import ServerProcess, wait_for
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForSequenceClassification

from trivium.store import ModelStore

TEXTS = [
    "The cat sits on the mat.",
    "A cat is sitting on a rug.",
    "Interest rates were raised by the central bank!",
    "你好 🙂 naïve café",
]
LONG = "word " * 400  # tokens; MiniLM takes 256


@pytest.fixture(scope="module")
def minilm() -> Iterator[ServerProcess]:
    process = ServerProcess("minilm")
    yield process
    log = process.log
    assert process.stop() == 0
    assert "Traceback" not in log, log


@pytest.fixture(scope="module")
def oracle() -> Any:
    """text, tokens at most -> its vector, as sentence-transformers computes it."""
    path = ModelStore().resolve("minilm")
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, dtype=torch.float32).eval()

    def vector(text: str, most: int = 256) -> list[float]:
        tokens = tokenizer(text, truncation=True, max_length=most, return_tensors="pt")
        with torch.inference_mode():
            mean = model(**tokens).last_hidden_state[0].mean(dim=0)
        return (mean / mean.norm()).tolist()  # type: ignore[no-any-return]

    return vector


def vectors(server: ServerProcess, **fields: Any) -> list[list[float]]:
    response = server.post("/v1/embeddings", {"model": "minilm", **fields})
    assert response.status_code == 200, response.text
    return [entry["embedding"] for entry in response.json()["data"]]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def test_m1_the_openai_client_gets_the_vectors_of_the_model(minilm: ServerProcess, oracle: Any) -> None:
    with minilm.openai() as client:
        answer = client.embeddings.create(model="minilm", input=TEXTS)
    for entry, text in zip(answer.data, TEXTS, strict=True):
        assert entry.embedding == pytest.approx(oracle(text), abs=1e-4)
        assert cosine(entry.embedding, oracle(text)) > 0.9999
    counts = [minilm.post("/tokenize", {"prompt": text}).json()["count"] for text in TEXTS]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(counts)


def test_alike_texts_have_alike_vectors(minilm: ServerProcess) -> None:
    cat, other_cat, bank, _ = vectors(minilm, input=TEXTS)
    assert cosine(cat, other_cat) > 0.6 > 0.2 > cosine(cat, bank)


def test_a_vector_is_the_same_to_the_bit_alone_and_among_others(minilm: ServerProcess) -> None:
    texts = [f"{text} {number}" for number in range(50) for text in TEXTS]
    together = vectors(minilm, input=texts, encoding_format="base64")
    assert [vectors(minilm, input=text, encoding_format="base64")[0] for text in texts[:8]] == together[:8]


def test_m1_tokens_are_taken_for_text(minilm: ServerProcess) -> None:
    ids = [minilm.post("/tokenize", {"prompt": text}).json()["tokens"] for text in TEXTS]
    assert ids[0][0] == 101 and ids[0][-1] == 102, "between [CLS] and [SEP]"
    assert vectors(minilm, input=ids) == vectors(minilm, input=TEXTS)
    assert vectors(minilm, input=ids[0]) == vectors(minilm, input=TEXTS[0])


def test_m1_fewer_dimensions_are_the_first_ones_with_norm_1(minilm: ServerProcess) -> None:
    (whole,), (cut,) = vectors(minilm, input="fox"), vectors(minilm, input="fox", dimensions=64)
    norm = math.sqrt(cosine(whole[:64], whole[:64]))
    assert cut == pytest.approx([value / norm for value in whole[:64]], abs=1e-6)
    refused = minilm.post("/v1/embeddings", {"input": "fox", "dimensions": 385}).json()["error"]
    assert refused["param"] == "dimensions" and "384" in refused["message"]


def test_a_text_that_is_too_long_is_refused_with_the_numbers(minilm: ServerProcess) -> None:
    response = minilm.post("/v1/embeddings", {"input": LONG})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert "256" in error["message"] and "402" in error["message"]


def test_a_text_that_is_to_be_cut_keeps_its_beginning_and_the_mark_of_its_end(
    minilm: ServerProcess, oracle: Any
) -> None:
    (whole,) = vectors(minilm, input=LONG, truncate_prompt_tokens=-1)
    (short,) = vectors(minilm, input=LONG, truncate_prompt_tokens=10)
    assert whole == pytest.approx(oracle(LONG), abs=1e-4)
    assert short == pytest.approx(oracle(LONG, most=10), abs=1e-4)
    (endless,) = vectors(minilm, input=LONG * 200, truncate_prompt_tokens=-1)
    assert endless == whole
    beyond = minilm.post("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 257}).json()["error"]
    assert beyond["param"] == "truncate_prompt_tokens" and "256" in beyond["message"]


def test_o10_ollamas_client_gets_the_same_and_cuts_unless_told_not_to(minilm: ServerProcess, oracle: Any) -> None:
    client = ollama.Client(minilm.url, timeout=60)
    answer = client.embed("minilm", [*TEXTS, LONG])
    for vector, text in zip(answer.embeddings, [*TEXTS, LONG], strict=True):
        assert list(vector) == pytest.approx(oracle(text), abs=1e-4)
    with pytest.raises(ollama.ResponseError, match="256"):
        client.embed("minilm", LONG, truncate=False)


def test_rankings_go_by_the_likeness_of_vectors(minilm: ServerProcess, oracle: Any) -> None:
    asked = {"query": TEXTS[0], "documents": TEXTS[1:]}
    results = minilm.post("/v1/rerank", asked).json()["results"]
    assert results[0]["index"] == 0
    for result in results:
        wanted = cosine(oracle(TEXTS[0]), oracle(TEXTS[1 + result["index"]]))
        assert result["relevance_score"] == pytest.approx(wanted, abs=1e-4)


def test_batches_make_vectors_too_and_texts_are_counted(minilm: ServerProcess) -> None:
    counted = minilm.metrics()["trivium_encoded_texts_total"]
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": "minilm", "input": text},
        }
        for number, text in enumerate(TEXTS)
    ]
    with minilm.openai() as client:
        file = client.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
        wait_for(lambda: client.batches.retrieve(batch.id).status == "completed" or None)
        ended = client.batches.retrieve(batch.id)
        assert ended.output_file_id is not None
        answers = [json.loads(line) for line in client.files.content(ended.output_file_id).text.splitlines()]
    assert minilm.metrics()["trivium_encoded_texts_total"] == counted + len(TEXTS)
    found = [answer["response"]["body"]["data"][0]["embedding"] for answer in answers]
    assert found == vectors(minilm, input=TEXTS)
    assert ended.usage is not None and ended.usage.input_tokens > 30


CHAT = [{"role": "user", "content": "hi"}]
NO_TEXT = "is an encoder: it makes vectors of texts (/v1/embeddings), and no text"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": CHAT}),
        ("/v1/chat/completions", {"messages": CHAT, "stream": True}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": "hi", "stream": True}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 4}),
        ("/api/chat", {"messages": CHAT}),
        ("/api/generate", {"prompt": "hi", "stream": False}),
    ],
)
def test_who_asks_an_encoder_for_text_is_told_what_it_can_do(
    minilm: ServerProcess, path: str, body: dict[str, Any]
) -> None:
    response = minilm.post(path, {"model": "minilm", **body})
    assert response.status_code == 400, response.text
    assert NO_TEXT in response.text


def test_anthropics_client_is_told_too(minilm: ServerProcess) -> None:
    client = anthropic.Anthropic(base_url=minilm.url, api_key="none", max_retries=0)
    with pytest.raises(anthropic.BadRequestError, match="is an encoder"):
        client.messages.create(model="minilm", max_tokens=4, messages=[{"role": "user", "content": "hi"}])


# A model that scores pairs


@pytest.fixture(scope="module")
def scorer_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM's tokenizer before a tiny model with random weights."""
    directory = tmp_path_factory.mktemp("models") / "scorer"
    torch.manual_seed(3)
    config = BertConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=1,
        initializer_range=0.3,
    )
    BertForSequenceClassification(config).eval().save_pretrained(directory)
    source = ModelStore().resolve("minilm")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (directory / name).write_bytes((source / name).read_bytes())
    return directory


@pytest.fixture(scope="module")
def scorer(scorer_files: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(str(scorer_files))
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="module")
def logit(scorer_files: Path) -> Any:
    """Of a pair, as transformers computes it."""
    tokenizer = AutoTokenizer.from_pretrained(scorer_files)
    model = BertForSequenceClassification.from_pretrained(scorer_files, dtype=torch.float32).eval()

    def of(one: str, other: str, most: int = 64) -> float:
        tokens = tokenizer(one, other, truncation="only_second", max_length=most, return_tensors="pt")
        with torch.inference_mode():
            return model(**tokens).logits[0, 0].item()  # type: ignore[no-any-return]

    return of


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_m4_a_scoring_model_ranks_by_its_own_scores(scorer: ServerProcess, logit: Any) -> None:
    wanted = [logit(TEXTS[0], other) for other in TEXTS[1:]]
    order = sorted(range(3), key=lambda index: -wanted[index])
    ranked = scorer.post("/v1/rerank", {"query": TEXTS[0], "documents": TEXTS[1:]}).json()
    assert [result["index"] for result in ranked["results"]] == order
    for result in ranked["results"]:
        assert result["relevance_score"] == pytest.approx(sigmoid(wanted[result["index"]]), abs=1e-4)
    raw = scorer.post("/rerank", {"query": TEXTS[0], "texts": TEXTS[1:], "raw_scores": True}).json()
    assert [entry["score"] for entry in raw] == pytest.approx([wanted[index] for index in order], abs=1e-4)


def test_scores_are_of_one_with_many_or_pair_by_pair(scorer: ServerProcess, logit: Any) -> None:
    many = scorer.post("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS[1:]}).json()["data"]
    assert [entry["score"] for entry in many] == pytest.approx(
        [sigmoid(logit(TEXTS[0], other)) for other in TEXTS[1:]], abs=1e-4
    )
    pairs = scorer.post("/v1/score", {"text_1": TEXTS[:2], "text_2": TEXTS[2:]}).json()
    assert [entry["score"] for entry in pairs["data"]] == pytest.approx(
        [sigmoid(logit(TEXTS[0], TEXTS[2])), sigmoid(logit(TEXTS[1], TEXTS[3]))], abs=1e-4
    )
    assert pairs["usage"]["total_tokens"] > 30


def test_a_pair_that_is_too_long_is_refused_or_loses_the_end_of_its_second_text(
    scorer: ServerProcess, logit: Any
) -> None:
    asked = {"query": TEXTS[0], "texts": [LONG]}
    response = scorer.post("/rerank", asked)
    assert response.status_code == 400 and "64" in response.json()["error"]["message"]
    (cut,) = scorer.post("/rerank", {**asked, "truncate": True}).json()
    assert cut["score"] == pytest.approx(sigmoid(logit(TEXTS[0], LONG)), abs=1e-4)
    (shorter,) = scorer.post("/rerank", {**asked, "truncate_prompt_tokens": 20}).json()
    assert shorter["score"] == pytest.approx(sigmoid(logit(TEXTS[0], LONG, most=20)), abs=1e-4)


def test_a_scoring_model_makes_no_vectors_and_says_so(scorer: ServerProcess) -> None:
    with scorer.openai() as client, pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="scorer", input="hi")
    assert "scores pairs of texts (/v1/rerank, /v1/score), and makes no vectors" in json.dumps(caught.value.body)


def test_an_encoder_tells_where_the_time_of_its_texts_went(minilm: ServerProcess) -> None:
    request_id = f"texts-{uuid.uuid4().hex}"
    body = {"model": "minilm", "input": TEXTS * 100}
    assert minilm.post("/v1/embeddings", body, headers={"X-Request-Id": request_id}).status_code == 200

    def look() -> dict[str, Any] | None:
        found = minilm.get(f"/v1/requests/{request_id}")
        return found.json()["account"] if found.status_code == 200 else None

    account = wait_for(look)
    assert sum(account["causes"].values()) == pytest.approx(account["seconds"], rel=0.01)
    assert account["causes"].keys() >= {"prompt", "own_texts"} and "engine" not in account["causes"]
    assert account["num_sequences"] == len(TEXTS) * 100 and account["engine_seconds"] > 0
