"""From a model's files, or from its facts alone, to a decoder that runs.

Weights are looked up, checked and laid one at a time. On the CPU what is stored as it is used is not copied: the
decoder then reads the mapped file, whose pages the operating system shares between processes and can drop and refetch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from trivium.faults import fault_point
from trivium.formats.source import ModelSource
from trivium.kernels.ops import Ops
from trivium.kernels.weights import LinearWeight, PackedTensor, QuantizedTensor, Weight
from trivium.models.checkpoint import Checkpoint
from trivium.models.decoder import Decoder
from trivium.models.locate import EMBEDDING, OUTPUT_HEAD, FoundWeight, locate_weights
from trivium.models.packed_weights import NoPackedWeights, PackedWeights
from trivium.models.spec import ModelSpec
from trivium.models.weight_form import AS_STORED, Stored, WeightForm
from trivium.models.weights import NORM_SUFFIX, weight_shapes

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
    form: WeightForm = AS_STORED,
) -> Decoder:
    """`dtype` is of hidden states, and of float weights where the ops do not take them as they are stored; quantized
    weights stay as they are.

    `max_position` bounds the positions that will be asked for (None: all that the model was made for). `packed` may hold
    weights that need not be packed again; `form` says what others are packed as.
    """
    fault_point("model.load")
    located = locate_weights(source)
    spec, checkpoint, found = located.spec, located.checkpoint, located.found
    done, total = 0, sum(weight.nbytes(checkpoint) for weight in found)
    weights: dict[str, LinearWeight] = {}
    for weight in found:
        laid = partial(_laid, weight, checkpoint, spec, ops, dtype, device)
        is_read_by_rows = weight.name == EMBEDDING
        weights[weight.name] = laid() if is_read_by_rows else _prepared(weight, laid, checkpoint, ops, packed, form)
        done += weight.nbytes(checkpoint)
        if progress is not None:
            progress(done, total)
    if spec.tied_embeddings:
        # The embedding itself stays as it is, to be read by rows.
        head, embedding = replace(found[0], name=OUTPUT_HEAD), weights[EMBEDDING]
        assert not isinstance(embedding, PackedTensor)
        weights[OUTPUT_HEAD] = _prepared(head, lambda: embedding, checkpoint, ops, packed, form)
    packed.finish()
    form.tell_what_did_not_fit(weights.values())
    if ops.joins_layers:
        _join_layers(weights, spec)
    return Decoder(spec, weights, ops, dtype, device, max_position)


def _prepared(
    weight: FoundWeight,
    laid: Callable[[], Weight],
    checkpoint: Checkpoint,
    ops: Ops,
    packed: PackedWeights,
    form: WeightForm,
) -> LinearWeight:
    """As the kernels like it: mapped if it was packed before, else made from what `laid` gives."""
    if len(weight.shape) == 1:
        return laid()
    stored = Stored(weight.name, weight.type(checkpoint), weight.shape)
    if kept := packed.get(weight.name, form.packed_types(stored), weight.shape):
        return kept
    prepared = form.packed(weight.name, laid(), ops)
    if isinstance(prepared, PackedTensor):
        packed.put(weight.name, prepared)
        _release(weight, checkpoint)
    return prepared


def _release(weight: FoundWeight, checkpoint: Checkpoint) -> None:
    for part in weight.parts:
        checkpoint.release(part)


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
    return _made_up(spec, ops, dtype, device, max_position, lambda weight: weight.normal_(std=0.02, generator=random))


def shape_model(
    spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: torch.device, max_position: int | None = None
) -> Decoder:
    """A decoder whose weights were never written, or are shapes alone; for what depends on nothing else."""
    return _made_up(spec, ops, dtype, device, max_position, lambda weight: weight)


def _made_up(
    spec: ModelSpec,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device | str,
    max_position: int | None,
    fill: Callable[[Tensor], Tensor],
) -> Decoder:
    stored_dtype = getattr(torch, spec.dtype)

    def make(name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith(NORM_SUFFIX):
            return torch.ones(shape, device=device)
        kept = len(shape) > 1 and ops.takes_stored_floats
        return fill(torch.empty(shape, dtype=stored_dtype if kept else dtype, device=device))

    weights: dict[str, LinearWeight] = {}
    for name, shape in weight_shapes(spec).items():
        made = make(name, shape)
        weights[name] = made if name == EMBEDDING else ops.prepare(made)
        if name == EMBEDDING and spec.tied_embeddings:
            weights[OUTPUT_HEAD] = ops.prepare(made)
    if ops.joins_layers:
        _join_layers(weights, spec)
    return Decoder(spec, weights, ops, dtype, device, max_position)


def _laid(
    found: FoundWeight,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Weight:
    """As the decoder uses it. The file's pages of what was copied need not stay in memory."""
    weight = found.read(checkpoint, spec)
    if isinstance(weight, QuantizedTensor):
        data = weight.data.to(device)
        is_copied = data is not weight.data
        laid: Weight = QuantizedTensor(weight.type, data, weight.shape)
    else:
        laid = _laid_floats(weight, found.name, spec, ops, dtype, device)
        is_copied = laid is not weight
    if found.is_copied or is_copied:
        _release(found, checkpoint)
    return laid


def _laid_floats(
    weight: Tensor, name: str, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Norms in float32 with their offset added; matrices as stored where the ops take them so; others in `dtype`."""
    if name.endswith(NORM_SUFFIX):
        norm = weight.to(device=device, dtype=torch.float32)
        return norm + spec.norm.offset if spec.norm.offset else norm
    if weight.ndim > 1 and ops.takes_stored_floats:
        return weight.to(device)
    return weight.to(device=device, dtype=dtype)
