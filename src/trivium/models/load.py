"""From a model's files, or from its facts alone, to a decoder that runs.

Weights are looked up, checked and laid one at a time. On the CPU what is stored as it is used is not copied: the
decoder then reads the mapped file, whose pages the operating system shares between processes and can drop and refetch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.formats.source import ModelSource
from trivium.kernels.ops import Ops
from trivium.kernels.weights import LinearWeight, PackedTensor, QuantizedTensor, Weight
from trivium.models.checkpoint import FLOAT_DTYPES, Checkpoint
from trivium.models.decoder import Decoder
from trivium.models.packed_weights import NoPackedWeights, PackedWeights
from trivium.models.registry import find_family, read_spec
from trivium.models.spec import ModelSpec
from trivium.models.weights import NORM_SUFFIX, Place, weight_shapes
from trivium.types.errors import ModelFileError, UnsupportedModelError

__all__ = ["load_model", "random_model", "read_spec"]

EMBEDDING = "embedding.weight"
OUTPUT_HEAD = "lm_head.weight"

# Layers of one input, and the matrix that holds them as one.
JOINED = tuple(
    (tuple(f"{part}.{kind}" for part in parts), f"{joined}.{kind}")
    for kind in ("weight", "bias")
    for parts, joined in (
        (("attention.q", "attention.k", "attention.v"), "attention.qkv"),
        (("mlp.gate", "mlp.up"), "mlp.gate_up"),
        (("experts.gate", "experts.up"), "experts.gate_up"),
    )
)

NO_PACKED_WEIGHTS = NoPackedWeights()

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def load_model(
    source: ModelSource,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device | str,
    progress: Progress | None = None,
    max_position: int | None = None,
    packed: PackedWeights = NO_PACKED_WEIGHTS,
) -> Decoder:
    """`dtype` is of hidden states, and of float weights where the ops do not take them as they are stored; quantized
    weights stay as they are.

    `max_position` bounds the positions that will be asked for (None: all that the model was made for). `packed` may hold
    weights that need not be packed again.
    """
    spec = read_spec(source)
    checkpoint = Checkpoint.of(source, find_family(source))
    found = _find_weights(spec, checkpoint)
    done, total = 0, sum(weight.nbytes(checkpoint) for weight in found)
    weights: dict[str, LinearWeight] = {}
    for weight in found:
        laid = partial(_laid, weight, checkpoint, spec, ops, dtype, device)
        weights[weight.name] = laid() if weight.name == EMBEDDING else _prepared(weight, laid, checkpoint, ops, packed)
        done += weight.nbytes(checkpoint)
        if progress is not None:
            progress(done, total)
    if spec.tied_embeddings:
        # The embedding itself stays as it is, to be read by rows.
        head, embedding = replace(found[0], name=OUTPUT_HEAD), weights[EMBEDDING]
        assert not isinstance(embedding, PackedTensor)
        weights[OUTPUT_HEAD] = _prepared(head, lambda: embedding, checkpoint, ops, packed)
    packed.finish()
    if ops.joins_layers:
        _join_layers(weights, spec)
    return Decoder(spec, weights, ops, dtype, device, max_position)


def _prepared(
    weight: FoundWeight, laid: Callable[[], Weight], checkpoint: Checkpoint, ops: Ops, packed: PackedWeights
) -> LinearWeight:
    """As the kernels like it: mapped if it was packed before, else made from what `laid` gives."""
    if len(weight.shape) == 1:
        return laid()
    if kept := packed.get(weight.name, weight.type(checkpoint), weight.shape):
        return kept
    prepared = ops.prepare(laid())
    if isinstance(prepared, PackedTensor):
        packed.put(weight.name, prepared)
        for part in weight.parts:
            checkpoint.release(part)
    return prepared


def _join_layers(weights: dict[str, LinearWeight], spec: ModelSpec) -> None:
    for layer in range(spec.num_layers):
        for parts, joined in JOINED:
            _join(weights, [f"layers.{layer}.{part}" for part in parts], f"layers.{layer}.{joined}")


def _join(weights: dict[str, LinearWeight], parts: list[str], joined: str) -> None:
    """The parts become rows of one matrix; quantized ones stay as they are."""
    tensors = [weight for name in parts if isinstance(weight := weights.get(name), Tensor)]
    if len(tensors) < len(parts):
        return
    dim = max(0, tensors[0].dim() - 2)  # rows of a matrix, of each matrix of a stack, elements of a bias
    weights[joined] = torch.cat(tensors, dim=dim)
    sizes = [tensor.shape[dim] for tensor in tensors]
    del tensors
    weights.update(zip(parts, weights[joined].split(sizes, dim=dim), strict=True))  # type: ignore[union-attr]


def random_model(
    spec: ModelSpec,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    max_position: int | None = None,
) -> Decoder:
    """A decoder of the right shape and speed, whose weights mean nothing; for measuring without a checkpoint."""
    random = torch.Generator(device).manual_seed(seed)
    stored_dtype = getattr(torch, spec.dtype)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith(NORM_SUFFIX):
            return torch.ones(shape, device=device)
        kept = len(shape) > 1 and ops.takes_stored_floats
        weight = torch.empty(shape, dtype=stored_dtype if kept else dtype, device=device)
        return weight.normal_(std=0.02, generator=random)

    drawn: dict[str, Weight] = {name: draw(name, shape) for name, shape in weight_shapes(spec).items()}
    if spec.tied_embeddings:
        drawn[OUTPUT_HEAD] = drawn[EMBEDDING]
    weights = {name: weight if name == EMBEDDING else ops.prepare(weight) for name, weight in drawn.items()}
    if ops.joins_layers:
        _join_layers(weights, spec)
    return Decoder(spec, weights, ops, dtype, device, max_position)


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


def _laid(
    found: FoundWeight,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Weight:
    """As the decoder uses it: norms in float32 with their offset added; float matrices as stored where the ops take them
    so; other float weights in `dtype`."""
    weight = found.read(checkpoint, spec)
    if isinstance(weight, QuantizedTensor):
        return QuantizedTensor(weight.type, weight.data.to(device), weight.shape)
    if found.name.endswith(NORM_SUFFIX):
        norm = weight.to(device=device, dtype=torch.float32)
        return norm + spec.norm.offset if spec.norm.offset else norm
    if weight.ndim > 1 and ops.takes_stored_floats:
        return weight.to(device)
    return weight.to(device=device, dtype=dtype)


def _stacked(parts: list[Weight], weight: FoundWeight) -> Weight:
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) == len(parts):
        return torch.stack(tensors)
    quantized = [part for part in parts if isinstance(part, QuantizedTensor)]
    if len({part.type for part in quantized}) != 1 or tensors:
        raise ModelFileError(f"the experts of {weight.parts[0]!r} are of several types, and cannot be stacked")
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
