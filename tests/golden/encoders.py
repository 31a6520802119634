"""One tiny encoder for each family, with seeded random weights, made and saved by `transformers`; and its vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from trivium.config.options import EngineOptions
from trivium.engine.encoder_core import EncoderCore
from trivium.engine.open_core import open_core
from trivium.types.request import Request, Sampling, Stopping

VOCAB_SIZE = 512
POSITIONS = 320
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.2,
}


@dataclass(frozen=True)
class TinyEncoder:
    name: str
    config: str  # class names in transformers
    model: str
    extra: dict[str, Any] = field(default_factory=dict)

    def save(self, directory: Path) -> PreTrainedModel:
        """The oracle; its weights are in `directory`."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**{**SIZES, **self.extra})
        config._attn_implementation = "eager"
        model = getattr(transformers, self.model)(config).float().eval()
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):  # which are saved as 1 and 0, and would hide a mistake
                torch.nn.init.normal_(module.weight, mean=1.0, std=0.2)
                torch.nn.init.normal_(module.bias, std=0.2)
        model.save_pretrained(directory)
        return model


ENCODERS = [
    TinyEncoder("bert", "BertConfig", "BertModel"),
    TinyEncoder("bert-tanh", "BertConfig", "BertModel", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    TinyEncoder("roberta", "RobertaConfig", "RobertaModel", {"type_vocab_size": 1, "pad_token_id": 1}),
    TinyEncoder("xlm-roberta", "XLMRobertaConfig", "XLMRobertaModel", {"type_vocab_size": 1, "hidden_act": "relu"}),
]
SCORERS = [
    TinyEncoder("bert", "BertConfig", "BertForSequenceClassification", {"num_labels": 1}),
    TinyEncoder("bert-3", "BertConfig", "BertForSequenceClassification", {"num_labels": 3}),
    TinyEncoder("roberta", "RobertaConfig", "RobertaForSequenceClassification", {"num_labels": 1, "pad_token_id": 1}),
]


def save_pooling(directory: Path, mode: str) -> None:
    """As sentence-transformers does."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    flags = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": False, f"pooling_mode_{mode}": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **flags}))


def open_encoder(directory: Path | str, **options: Any) -> EncoderCore:
    core = open_core(EngineOptions(model=str(directory), num_threads=1, packed_cache_bytes=0, **options))
    assert isinstance(core, EncoderCore)
    return core


def encode(core: EncoderCore, texts: Sequence[Sequence[int]], seconds: Sequence[int] | None = None) -> torch.Tensor:
    """float32 [N, vector_size], of texts that are in the engine together."""
    for place, tokens in enumerate(texts):
        second_from = seconds[place] if seconds else 0
        pooling = Sampling(seed=0, pools=True)
        core.add(
            Request(str(place), tuple(tokens), pooling, Stopping(max_tokens=1), float(place), second_from=second_from)
        )
    told = {}
    while core.has_work:
        for delta in core.step():
            assert delta.error is None
            told[int(delta.request_id)] = torch.frombuffer(bytearray(delta.pooled), dtype=torch.float32)
    return torch.stack([told[place] for place in range(len(texts))])
