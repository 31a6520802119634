"""Finds the family of an encoder and reads its spec. Imports no torch, so that facts can be had without it."""

from __future__ import annotations

from trivium.formats.huggingface import HFDirectory
from trivium.formats.source import ModelSource
from trivium.models.encoder_families.bert import BERT
from trivium.models.encoder_families.roberta import ROBERTA
from trivium.models.encoder_family import EncoderFamily
from trivium.models.encoder_spec import EncoderSpec

ENCODER_FAMILIES = (BERT, ROBERTA)


def find_encoder_family(source: ModelSource) -> EncoderFamily | None:
    """None: the model is no encoder that we know."""
    if not isinstance(source, HFDirectory):
        return None
    named = _architectures(source)
    for family in ENCODER_FAMILIES:
        if named & {*family.architectures, *family.scoring_architectures}:
            return family
    return None


def read_encoder_spec(source: HFDirectory, family: EncoderFamily) -> EncoderSpec:
    return family.spec(source, bool(_architectures(source) & {*family.scoring_architectures}))


def _architectures(source: HFDirectory) -> set[str]:
    names = source.config.get("architectures")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
