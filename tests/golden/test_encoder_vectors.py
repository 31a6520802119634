"""Vectors and scores of encoders equal to those that `transformers` computes with the same weights, in any batch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from encoders import ENCODERS, POSITIONS, SCORERS, VOCAB_SIZE, TinyEncoder, encode, open_encoder, save_pooling
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from trivium.llm.llm import LLM
from trivium.store import ModelStore
from trivium.types.errors import InvalidRequestError, ModelFileError, UnsupportedModelError

LENGTHS = (1, 2, 3, 17, 64, 129, 255, 256)


def texts_of(lengths: tuple[int, ...], vocab_size: int = VOCAB_SIZE) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


def states_of(model: PreTrainedModel, text: list[int]) -> Tensor:
    with torch.inference_mode():
        states: Tensor = model(torch.tensor([text])).last_hidden_state[0]
    return states


def unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True)


def assert_close(got: Tensor, want: Tensor) -> None:
    got, want = unit(got), unit(want)
    assert (got - want).abs().max() < 1e-4
    assert (got * want).sum(dim=-1).min() > 0.9999


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: encoder.name)
def test_vectors_are_means_of_the_states_that_transformers_computes(
    encoder: TinyEncoder, kernels: str, tmp_path: Path
) -> None:
    model = encoder.save(tmp_path)
    texts = texts_of(LENGTHS)
    want = torch.stack([states_of(model, text).mean(dim=0) for text in texts])
    assert_close(encode(open_encoder(tmp_path, kernels=kernels), texts), want)


@pytest.mark.parametrize(
    ("mode", "pooled"),
    [
        ("mean_tokens", lambda states: states.mean(dim=0)),
        ("cls_token", lambda states: states[0]),
        ("max_tokens", lambda states: states.amax(dim=0)),
        ("lasttoken", lambda states: states[-1]),
    ],
)
def test_states_are_pooled_as_the_models_files_say(mode: str, pooled, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = ENCODERS[0].save(tmp_path)
    save_pooling(tmp_path, mode)
    texts = texts_of((1, 5, 40))
    want = torch.stack([pooled(states_of(model, text)) for text in texts])
    assert_close(encode(open_encoder(tmp_path), texts), want)


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda encoder: encoder.name)
def test_scores_of_pairs_are_those_of_transformers(scorer: TinyEncoder, tmp_path: Path) -> None:
    model = scorer.save(tmp_path)
    texts = texts_of((6, 30, 200))
    marks_second = model.config.type_vocab_size > 1
    seconds = [len(text) // 3 if marks_second else 0 for text in texts]
    want = []
    for text, second in zip(texts, seconds, strict=True):
        types = [int(marks_second and place >= second) for place in range(len(text))]
        with torch.inference_mode():
            want.append(model(torch.tensor([text]), token_type_ids=torch.tensor([types])).logits[0])
    core = open_encoder(tmp_path)
    assert (core.card.task, core.card.vector_size) == ("score", model.config.num_labels)
    assert torch.allclose(encode(core, texts, seconds), torch.stack(want), atol=1e-4)


def test_a_vector_is_the_same_to_the_bit_alone_and_among_64(tmp_path: Path) -> None:
    ENCODERS[0].save(tmp_path)
    core = open_encoder(tmp_path, kernels="native")
    texts = texts_of(tuple(random.Random(1).randrange(1, 257) for _ in range(64)))
    together = encode(core, texts)
    for text, vector in zip(texts, together, strict=True):
        assert torch.equal(encode(core, [text])[0], vector)


def test_positions_end_where_the_table_does(tmp_path: Path) -> None:
    """RoBERTa's first text position is that after the padding's."""
    encoder = next(one for one in ENCODERS if one.name == "roberta")
    model = encoder.save(tmp_path)
    core = open_encoder(tmp_path)
    assert core.card.max_model_len == POSITIONS - 2
    (text,) = texts_of((POSITIONS - 2,))
    assert_close(encode(core, [text]), states_of(model, text).mean(dim=0)[None])


def test_a_checkpoint_with_a_head_still_makes_vectors(tmp_path: Path) -> None:
    """Of BertForMaskedLM, say, whose encoder's tensors have a prefix."""
    model = TinyEncoder("bert", "BertConfig", "BertForMaskedLM").save(tmp_path)
    texts = texts_of((3, 20))
    want = torch.stack([states_of(model.bert, text).mean(dim=0) for text in texts])
    assert_close(encode(open_encoder(tmp_path), texts), want)


def test_what_is_not_an_encoder_we_run_is_refused_by_name(tmp_path: Path) -> None:
    ENCODERS[0].save(tmp_path)
    save_pooling(tmp_path, "weightedmean_tokens")
    with pytest.raises(UnsupportedModelError, match="pooling_mode_weightedmean_tokens"):
        open_encoder(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]')
    with pytest.raises(UnsupportedModelError, match="Dense"):
        open_encoder(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling", "path": "../elsewhere"}]')
    with pytest.raises(ModelFileError, match="elsewhere"):
        open_encoder(tmp_path)


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The real one; it is fetched once, about 84 MB."""
    return ModelStore().resolve("minilm")


def test_minilm_makes_the_vectors_that_transformers_makes(minilm: Path) -> None:
    model = AutoModel.from_pretrained(minilm, dtype=torch.float32).eval()
    lengths = (1, 2, 9, 33, 128, 256, *(random.Random(3).randrange(1, 257) for _ in range(58)))
    texts = texts_of(lengths, vocab_size=30_000)
    core = open_encoder(minilm)
    assert core.card.max_model_len == 256  # sentence_bert_config.json
    together = encode(core, texts)
    want = torch.stack([states_of(model, text).mean(dim=0) for text in texts])
    assert_close(together, want)
    for place in range(0, 64, 9):
        assert_close(encode(core, [texts[place]]), want[place][None])


def test_a_program_gets_the_same_vectors_as_the_engine_makes(minilm: Path) -> None:
    texts = ["a cat", "a dog on a very long leash"]
    with LLM(str(minilm), num_threads=1, packed_cache_bytes=0) as llm:
        outputs = llm.embed(texts)
        assert llm.card.task == "embed"
        with pytest.raises(InvalidRequestError, match="is an encoder"):
            llm.generate("a cat")
    got = torch.stack([torch.frombuffer(bytearray(one.embedding), dtype=torch.float32) for one in outputs])
    assert torch.equal(got, encode(open_encoder(minilm), [one.prompt_token_ids for one in outputs]))
