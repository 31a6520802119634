"""What one file of `encoder_families/` declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trivium.formats.huggingface import HFDirectory
from trivium.models.encoder_spec import EncoderSpec

# By the weight's name with {i} for the layer: the tensors of the checkpoint whose rows it is made of.
TensorNames = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class EncoderFamily:
    name: str
    architectures: tuple[str, ...]  # as in config.json, of models that make vectors
    scoring_architectures: tuple[str, ...]  # of those that score texts
    spec: Callable[[HFDirectory, bool], EncoderSpec]  # whether it scores
    tensor_names: TensorNames
    prefix: str  # that tensor names of models with a head begin with, and others do not
    ignored: tuple[str, ...]  # beginnings of names, without prefix, of tensors that may be there and are not used
