"""BERT, and all that follow it with other weights: MiniLM, BGE, E5, GTE."""

from __future__ import annotations

from trivium.formats.huggingface import HFDirectory
from trivium.models.encoder_family import EncoderFamily, TensorNames
from trivium.models.encoder_spec import ElementFunction, EncoderSpec, Pooling
from trivium.models.from_huggingface import HFConfig, hf_dtype, hf_num_layers
from trivium.models.sentence_files import read_sentence_files
from trivium.types.errors import UnsupportedModelError

ACTIVATIONS: dict[str, ElementFunction] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}

LAYER = "encoder.layer.{i}"
COMMON_NAMES: TensorNames = {
    "embedding.weight": ("embeddings.word_embeddings.weight",),
    "positions.weight": ("embeddings.position_embeddings.weight",),
    "token_types.weight": ("embeddings.token_type_embeddings.weight",),
    "embedding_norm.weight": ("embeddings.LayerNorm.weight",),
    "embedding_norm.bias": ("embeddings.LayerNorm.bias",),
    **{
        name: parts
        for kind in ("weight", "bias")
        for name, parts in {
            f"layers.{{i}}.qkv.{kind}": tuple(
                f"{LAYER}.attention.self.{part}.{kind}" for part in ("query", "key", "value")
            ),
            f"layers.{{i}}.o.{kind}": (f"{LAYER}.attention.output.dense.{kind}",),
            f"layers.{{i}}.attention_norm.{kind}": (f"{LAYER}.attention.output.LayerNorm.{kind}",),
            f"layers.{{i}}.up.{kind}": (f"{LAYER}.intermediate.dense.{kind}",),
            f"layers.{{i}}.down.{kind}": (f"{LAYER}.output.dense.{kind}",),
            f"layers.{{i}}.mlp_norm.{kind}": (f"{LAYER}.output.LayerNorm.{kind}",),
        }.items()
    },
}
IGNORED = ("embeddings.position_ids", "pooler.", "cls.", "lm_head.")


def encoder_spec(
    source: HFDirectory, family: str, scores: bool, first_position: int, pooling: Pooling = "mean"
) -> EncoderSpec:
    """`pooling` is what counts where the directory does not say."""
    config = HFConfig(source.config).with_defaults(
        layer_norm_eps=1e-12, type_vocab_size=2, hidden_act="gelu", position_embedding_type="absolute"
    )
    if (kind := config.get("position_embedding_type")) != "absolute":
        raise UnsupportedModelError(f"{source.path}: has positions of the kind {kind!r}, and we compute absolute ones")
    if (function := str(config.get("hidden_act"))) not in ACTIVATIONS:
        raise UnsupportedModelError(f"activation {function[:40]!r} is not among {', '.join(ACTIVATIONS)}")
    files = read_sentence_files(source)
    num_positions = config.size("max_position_embeddings")
    longest = num_positions - first_position
    return EncoderSpec(
        family=family,
        num_layers=hf_num_layers(config),
        hidden_size=config.size("hidden_size"),
        num_heads=config.size("num_attention_heads"),
        intermediate_size=config.size("intermediate_size"),
        vocab_size=config.size("vocab_size"),
        num_positions=num_positions,
        first_position=first_position,
        max_position=longest,
        trained_length=min(files.max_length or longest, longest),
        num_token_types=config.size("type_vocab_size"),
        norm_eps=config.real("layer_norm_eps"),
        activation=ACTIVATIONS[function],
        dtype=hf_dtype(config),
        pooling=files.pooling or pooling,
        num_labels=num_labels(config) if scores else 0,
    )


def num_labels(config: HFConfig) -> int:
    names = config.get("id2label")
    return len(names) if isinstance(names, dict) and names else config.optional_size("num_labels") or 2


def spec(source: HFDirectory, scores: bool) -> EncoderSpec:
    return encoder_spec(source, "bert", scores, first_position=0)


BERT = EncoderFamily(
    name="bert",
    architectures=("BertModel", "BertForMaskedLM"),
    scoring_architectures=("BertForSequenceClassification",),
    spec=spec,
    tensor_names={
        **COMMON_NAMES,
        "head.dense.weight": ("pooler.dense.weight",),
        "head.dense.bias": ("pooler.dense.bias",),
        "head.out.weight": ("classifier.weight",),
        "head.out.bias": ("classifier.bias",),
    },
    prefix="bert.",
    ignored=IGNORED,
)
