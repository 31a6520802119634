"""How many bytes the weights will take, told from headers: the arithmetic of `load`, without its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from msgspec import Struct

from trivium.kernels.ops import Ops, Packing
from trivium.kernels.weights import FLOAT_TYPE_NAMES
from trivium.models.checkpoint import FLOAT_DTYPES, Checkpoint
from trivium.models.locate import EMBEDDING, OUTPUT_HEAD, FoundWeight, LocatedWeights
from trivium.models.spec import ModelSpec
from trivium.models.weight_form import Stored, WeightForm
from trivium.models.weights import NORM_SUFFIX, weight_shapes


class WeightMemory(Struct, frozen=True):
    own_bytes: int  # held as long as the engine lives
    mapped_bytes: int  # pages of files: shared between processes, dropped and read again by the system
    packed_types: frozenset[str] = frozenset()

    @property
    def total_bytes(self) -> int:
        return self.own_bytes + self.mapped_bytes


class _Laid(Struct, frozen=True):
    nbytes: int
    type: str
    is_mapped: bool


def weight_memory(
    located: LocatedWeights,
    ops: Ops,
    dtype: torch.dtype,
    device: str,
    is_packed: Callable[[str], bool],
    form: WeightForm,
) -> WeightMemory:
    """`is_packed(name)`: the weight lies packed on disk already."""
    own = mapped = 0
    packed_types: set[str] = set()
    weights = list(located.found)

    def bytes_if_it_fits(packing: Packing, stored: Stored) -> int:
        packed_type = form.packed_types(stored)[0]
        packed_types.add(packed_type)
        return packed_bytes(packing, packed_type, stored.shape)

    embedding = _laid(weights[0], located.checkpoint, located.spec, ops, dtype, device)
    for weight in weights:
        laid = _laid(weight, located.checkpoint, located.spec, ops, dtype, device)
        if _is_packed_by(ops, weight.name, weight.shape):
            assert ops.packing is not None
            nbytes = bytes_if_it_fits(ops.packing, Stored(weight.name, laid.type, weight.shape))
            is_mapped = stays_mapped(ops.packing) and is_packed(weight.name)
        else:
            nbytes, is_mapped = laid.nbytes, laid.is_mapped
        own, mapped = (own, mapped + nbytes) if is_mapped else (own + nbytes, mapped)
    if located.spec.tied_embeddings and ops.packing is not None:
        # The embedding itself is read by rows; the output projection is a packed copy.
        nbytes = bytes_if_it_fits(ops.packing, Stored(OUTPUT_HEAD, embedding.type, weights[0].shape))
        is_mapped = stays_mapped(ops.packing) and is_packed(OUTPUT_HEAD)
        own, mapped = (own, mapped + nbytes) if is_mapped else (own + nbytes, mapped)
    return WeightMemory(own, mapped, frozenset(packed_types))


def random_weight_memory(spec: ModelSpec, ops: Ops, dtype: torch.dtype) -> WeightMemory:
    """Of a model without files."""
    stored = getattr(torch, spec.dtype)
    shapes = weight_shapes(spec)
    own = 0
    for name, shape in shapes.items():
        kept = stored if len(shape) > 1 and ops.takes_stored_floats else dtype
        kept = torch.float32 if name.endswith(NORM_SUFFIX) else kept
        if _is_packed_by(ops, name, shape):
            assert ops.packing is not None
            own += packed_bytes(ops.packing, FLOAT_TYPE_NAMES[kept], shape)
        else:
            own += math.prod(shape) * kept.itemsize
    if spec.tied_embeddings and ops.packing is not None:
        kept = stored if ops.takes_stored_floats else dtype
        own += packed_bytes(ops.packing, FLOAT_TYPE_NAMES[kept], shapes[EMBEDDING])
    return WeightMemory(own, 0)


def _is_packed_by(ops: Ops, name: str, shape: tuple[int, ...]) -> bool:
    return ops.packing is not None and len(shape) > 1 and name != EMBEDDING


def stays_mapped(packing: Packing) -> bool:
    """Whether a weight that lies packed on disk is used where it is mapped; else it is copied."""
    return not packing.memory.are_offered


def packed_bytes(packing: Packing, type: str, shape: tuple[int, ...]) -> int:
    return math.prod(packing.data_shape(type, shape))


def _laid(
    weight: FoundWeight, checkpoint: Checkpoint, spec: ModelSpec, ops: Ops, dtype: torch.dtype, device: str
) -> _Laid:
    stored = weight.type(checkpoint)
    is_mapped = device == "cpu" and not weight.is_copied
    if stored not in FLOAT_DTYPES:
        return _Laid(weight.nbytes(checkpoint), stored, is_mapped)
    if weight.name.endswith(NORM_SUFFIX):
        wanted, is_mapped = torch.float32, is_mapped and not spec.norm.offset
    else:
        wanted = FLOAT_DTYPES[stored] if len(weight.shape) > 1 and ops.takes_stored_floats else dtype
    is_mapped = is_mapped and wanted == FLOAT_DTYPES[stored]
    return _Laid(math.prod(weight.shape) * wanted.itemsize, FLOAT_TYPE_NAMES[wanted], is_mapped)
