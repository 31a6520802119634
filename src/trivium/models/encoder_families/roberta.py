"""RoBERTa and XLM-R: BERT whose positions begin after that of the padding, with a head of its own."""

from __future__ import annotations

from trivium.formats.huggingface import HFDirectory
from trivium.models.encoder_families.bert import COMMON_NAMES, IGNORED, encoder_spec
from trivium.models.encoder_family import EncoderFamily
from trivium.models.encoder_spec import EncoderSpec
from trivium.models.from_huggingface import HFConfig


def spec(source: HFDirectory, scores: bool) -> EncoderSpec:
    padding = HFConfig(source.config).with_defaults(pad_token_id=1).integer("pad_token_id")
    return encoder_spec(source, "roberta", scores, first_position=padding + 1)


ROBERTA = EncoderFamily(
    name="roberta",
    architectures=("RobertaModel", "XLMRobertaModel", "RobertaForMaskedLM", "XLMRobertaForMaskedLM"),
    scoring_architectures=("RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"),
    spec=spec,
    tensor_names={
        **COMMON_NAMES,
        "head.dense.weight": ("classifier.dense.weight",),
        "head.dense.bias": ("classifier.dense.bias",),
        "head.out.weight": ("classifier.out_proj.weight",),
        "head.out.bias": ("classifier.out_proj.bias",),
    },
    prefix="roberta.",
    ignored=IGNORED,
)
