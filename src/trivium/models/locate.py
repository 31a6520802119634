"""Where in a checkpoint each weight of a decoder lies, and whether all of them are there: from its headers alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.formats.source import ModelSource
from trivium.kernels.weights import QuantizedTensor, Weight
from trivium.models.checkpoint import FLOAT_DTYPES, Checkpoint
from trivium.models.registry import find_family, read_spec
from trivium.models.spec import ModelSpec
from trivium.models.weights import Place, weight_shapes
from trivium.types.errors import ModelFileError, UnsupportedModelError

EMBEDDING = "embedding.weight"
OUTPUT_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class LocatedWeights:
    spec: ModelSpec
    checkpoint: Checkpoint
    found: list[FoundWeight]  # the embedding first


def locate_weights(source: ModelSource) -> LocatedWeights:
    """Refuses a checkpoint that is not whole, or has what cannot be computed with. Reads no weight."""
    spec = read_spec(source)
    checkpoint = Checkpoint.of(source, find_family(source))
    return LocatedWeights(spec, checkpoint, _find_weights(spec, checkpoint))


@dataclass(frozen=True)
class FoundWeight:
    """A weight of the decoder and the tensors of the checkpoint that it is made of."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]  # several: one per expert
    place: Place

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of each part."""
        if self.place.half is not None:
            return (*self.shape[:-2], 2 * self.shape[-2], self.shape[-1])
        return self.shape[1:] if "{e}" in self.place.name else self.shape

    @property
    def is_copied(self) -> bool:
        """What is stacked, taken apart or put in another order is not used where it is mapped."""
        return len(self.parts) > 1 or self.place.half is not None or self.place.interleaved_heads

    def type(self, checkpoint: Checkpoint) -> str:
        return checkpoint.tensors[self.parts[0]].type

    def nbytes(self, checkpoint: Checkpoint) -> int:
        return sum(checkpoint.tensors[part].nbytes for part in self.parts) // (1 if self.place.half is None else 2)

    def read(self, checkpoint: Checkpoint, spec: ModelSpec) -> Weight:
        if "{e}" in self.place.name:
            return _stacked([checkpoint.read(part) for part in self.parts], self)
        weight = checkpoint.read(self.parts[0])
        if self.place.half is not None:
            return _half_of_rows(weight, self.place.half)
        if self.place.interleaved_heads:
            return weight[_deinterleaved(self.shape[0], spec.head_dim)]
        return weight


def _find_weights(spec: ModelSpec, checkpoint: Checkpoint) -> list[FoundWeight]:
    """Where all weights of the decoder lie; refuses a checkpoint with too few tensors, too many, or misshapen ones."""
    found = [_find(name, shape, spec, checkpoint) for name, shape in weight_shapes(spec).items()]
    used = {part for weight in found for part in weight.parts}
    if spec.tied_embeddings:
        used |= {place.name for place in checkpoint.places[OUTPUT_HEAD]}  # a copy of the embedding
    if unused := sorted(checkpoint.tensors.keys() - used):
        raise ModelFileError(
            f"{checkpoint.path}: {len(unused)} of {len(checkpoint.tensors)} tensors are not part of a {spec.family}"
            f" model of this configuration, the first is {checkpoint.tensors[unused[0]].name!r}"
        )
    return found


def _find(name: str, shape: tuple[int, ...], spec: ModelSpec, checkpoint: Checkpoint) -> FoundWeight:
    places = _places_of(name, checkpoint)
    for place, layer in places:
        experts = range(spec.moe.num_experts) if spec.moe and "{e}" in place.name else (0,)
        parts = tuple(place.name.format(i=layer, e=expert) for expert in experts)
        if parts[0] in checkpoint.tensors:
            weight = FoundWeight(name, shape, parts, place)
            _check_parts(weight, checkpoint)
            return weight
    place, layer = places[0]
    raise ModelFileError(f"{checkpoint.path}: tensor {place.name.format(i=layer, e=0)!r} is missing")


def _places_of(name: str, checkpoint: Checkpoint) -> list[tuple[Place, str]]:
    """With the layer that {i} stands for."""
    if name in checkpoint.places:
        return [(place, "") for place in checkpoint.places[name]]
    layers, layer, rest = name.split(".", 2)
    return [(place, layer) for place in checkpoint.places[f"{layers}.{{i}}.{rest}"]]


def _check_parts(weight: FoundWeight, checkpoint: Checkpoint) -> None:
    for part in weight.parts:
        if part not in checkpoint.tensors:
            raise ModelFileError(f"{checkpoint.path}: tensor {part!r} is missing")
        stored = checkpoint.tensors[part]
        if stored.shape != weight.stored_shape:
            raise ModelFileError(
                f"{checkpoint.path}: tensor {stored.name!r} has the shape {list(stored.shape)},"
                f" but the configuration asks for {list(weight.stored_shape)}"
            )
        is_matrix = len(stored.shape) > 1
        if stored.type not in FLOAT_DTYPES and not (is_matrix and stored.type in QUANT_TYPES):
            raise UnsupportedModelError(
                f"{checkpoint.path}: {'matrix' if is_matrix else 'vector'} {stored.name!r} is of type {stored.type},"
                " which is not one we compute with"
            )
    types = {checkpoint.tensors[part].type for part in weight.parts}
    if len(types) > 1 and not types <= FLOAT_DTYPES.keys():
        raise ModelFileError(
            f"{checkpoint.path}: the experts of {weight.parts[0]!r} are of several types, and cannot be stacked"
        )


def _stacked(parts: list[Weight], weight: FoundWeight) -> Weight:
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) == len(parts):
        return torch.stack(tensors)
    quantized = [part for part in parts if isinstance(part, QuantizedTensor)]  # all of one type: it was checked
    return QuantizedTensor(quantized[0].type, torch.stack([part.data for part in quantized]), weight.shape)


def _half_of_rows(weight: Weight, half: int) -> Weight:
    """weight [..., 2 * out, in] -> [..., out, in]."""
    rows = weight.shape[-2] // 2
    if isinstance(weight, Tensor):
        return weight[..., half * rows : (half + 1) * rows, :].contiguous()
    data = weight.data[..., half * rows : (half + 1) * rows, :].contiguous()
    return QuantizedTensor(weight.type, data, (*weight.shape[:-2], rows, weight.shape[-1]))


def _deinterleaved(num_rows: int, head_dim: int) -> Tensor:
    """Which stored row each row is: a head's rows lie as 0, n/2, 1, n/2 + 1, … and are wanted as 0, 1, … n - 1."""
    stored_as = torch.arange(head_dim).view(head_dim // 2, 2).T.flatten()
    heads = torch.arange(0, num_rows, head_dim)
    return (heads[:, None] + stored_as).flatten()
