"""From an encoder's files, or from its facts alone, to an encoder that runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.formats.huggingface import HFDirectory
from trivium.kernels.ops import Ops
from trivium.kernels.weights import FLOAT_TYPE_NAMES, LinearWeight, PackedTensor
from trivium.models.checkpoint import FLOAT_DTYPES, Checkpoint, StoredTensor
from trivium.models.encoder import Encoder, encoder_weight_shapes
from trivium.models.encoder_family import EncoderFamily
from trivium.models.encoder_registry import read_encoder_spec
from trivium.models.encoder_spec import EncoderSpec
from trivium.models.packed_weights import NoPackedWeights, PackedWeights
from trivium.models.weight_memory import WeightMemory, packed_bytes, stays_mapped
from trivium.types.errors import ModelFileError, UnsupportedModelError

READ_BY_ROWS = ("embedding.weight", "positions.weight", "token_types.weight")
NO_PACKED_WEIGHTS = NoPackedWeights()


def load_encoder(
    source: HFDirectory,
    family: EncoderFamily,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device | str,
    packed: PackedWeights = NO_PACKED_WEIGHTS,
) -> Encoder:
    """`dtype` is of hidden states, and of weights where the ops do not take them as they are stored."""
    located = locate_encoder_weights(source, family)
    spec, checkpoint, found = located.spec, located.checkpoint, located.found
    weights = {weight.name: weight.prepared(checkpoint, ops, dtype, device, packed) for weight in found}
    packed.finish()
    return Encoder(spec, weights, ops, dtype, device)


def random_encoder(spec: EncoderSpec, ops: Ops, dtype: torch.dtype, device: torch.device | str, seed: int) -> Encoder:
    """Of the right shape and speed, whose weights mean nothing; for measuring without a checkpoint."""
    random = torch.Generator(device).manual_seed(seed)
    weights: dict[str, LinearWeight] = {}
    for name, shape in encoder_weight_shapes(spec).items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(shape, device=device)
            continue
        drawn = torch.empty(shape, dtype=dtype, device=device).normal_(std=0.02, generator=random)
        weights[name] = ops.prepare(drawn) if len(shape) > 1 and name not in READ_BY_ROWS else drawn
    return Encoder(spec, weights, ops, dtype, device)


@dataclass(frozen=True)
class FoundWeight:
    """A weight of the encoder and the tensors of the checkpoint whose rows it is made of."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]

    @property
    def is_linear(self) -> bool:
        return len(self.shape) > 1 and self.name not in READ_BY_ROWS

    def prepared(
        self, checkpoint: Checkpoint, ops: Ops, dtype: torch.dtype, device: torch.device | str, packed: PackedWeights
    ) -> LinearWeight:
        """As the kernels like it: mapped if it was packed before."""
        if self.is_linear and (kept := packed.get(self.name, (checkpoint.tensors[self.parts[0]].type,), self.shape)):
            return kept
        stored = self._read(checkpoint)
        is_kept_as_stored = self.is_linear and ops.takes_stored_floats
        laid = stored.to(device=device, dtype=stored.dtype if is_kept_as_stored else dtype)
        prepared = ops.prepare(laid) if self.is_linear else laid
        if isinstance(prepared, PackedTensor):
            packed.put(self.name, prepared)
        if prepared is not stored or len(self.parts) > 1:  # the file's pages need not stay in memory
            for part in self.parts:
                checkpoint.release(part)
        return prepared

    def _read(self, checkpoint: Checkpoint) -> Tensor:
        tensors = [part for name in self.parts if isinstance(part := checkpoint.read(name), Tensor)]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


@dataclass(frozen=True)
class LocatedEncoder:
    spec: EncoderSpec
    checkpoint: Checkpoint
    found: list[FoundWeight]


def locate_encoder_weights(source: HFDirectory, family: EncoderFamily) -> LocatedEncoder:
    """From headers alone. Refuses a checkpoint that is not whole."""
    spec = read_encoder_spec(source, family)
    checkpoint = _checkpoint(source, family, spec)
    return LocatedEncoder(spec, checkpoint, _find_weights(spec, family, checkpoint))


def encoder_weight_memory(
    located: LocatedEncoder, ops: Ops, dtype: torch.dtype, device: str, is_packed: Callable[[str], bool]
) -> WeightMemory:
    """The arithmetic of `load_encoder`, without its tensors."""
    own = mapped = 0
    for weight in located.found:
        stored = FLOAT_DTYPES[located.checkpoint.tensors[weight.parts[0]].type]
        kept = stored if weight.is_linear and ops.takes_stored_floats else dtype
        if weight.is_linear and ops.packing is not None:
            nbytes = packed_bytes(ops.packing, FLOAT_TYPE_NAMES[kept], weight.shape)
            is_mapped = stays_mapped(ops.packing) and is_packed(weight.name)
        else:
            nbytes = math.prod(weight.shape) * kept.itemsize
            is_mapped = device == "cpu" and len(weight.parts) == 1 and kept == stored
        own, mapped = (own, mapped + nbytes) if is_mapped else (own + nbytes, mapped)
    return WeightMemory(own, mapped)


def random_encoder_memory(spec: EncoderSpec, ops: Ops, dtype: torch.dtype) -> WeightMemory:
    """The arithmetic of `random_encoder`."""
    own = 0
    for name, shape in encoder_weight_shapes(spec).items():
        if ops.packing is not None and len(shape) > 1 and name not in READ_BY_ROWS:
            own += packed_bytes(ops.packing, FLOAT_TYPE_NAMES[dtype], shape)
        else:
            own += math.prod(shape) * (torch.float32 if name.endswith("norm.weight") else dtype).itemsize
    return WeightMemory(own, 0)


def _checkpoint(source: HFDirectory, family: EncoderFamily, spec: EncoderSpec) -> Checkpoint:
    """The tensors that the encoder may be made of, by their names without the family's prefix."""
    head = tuple(name for key, names in family.tensor_names.items() if key.startswith("head.") for name in names)
    stored = {}
    for name, entry in source.weights.tensors.items():
        plain = name.removeprefix(family.prefix)
        if plain.startswith(family.ignored) and not (spec.num_labels and plain in head):
            continue
        stored[plain] = StoredTensor(name, entry.dtype, entry.shape, entry.nbytes)
    return Checkpoint(str(source.path), stored, {}, source.weights.read, source.weights.release)


def _find_weights(spec: EncoderSpec, family: EncoderFamily, checkpoint: Checkpoint) -> list[FoundWeight]:
    """Refuses a checkpoint with too few tensors, too many, or misshapen ones."""
    found = []
    for name, shape in encoder_weight_shapes(spec).items():
        weight = FoundWeight(name, shape, _parts_of(name, family))
        _check_parts(weight, checkpoint)
        found.append(weight)
    if unused := sorted(checkpoint.tensors.keys() - {part for weight in found for part in weight.parts}):
        raise ModelFileError(
            f"{checkpoint.path}: {len(unused)} of {len(checkpoint.tensors)} tensors are not part of a {spec.family}"
            f" encoder of this configuration, the first is {checkpoint.tensors[unused[0]].name!r}"
        )
    return found


def _parts_of(name: str, family: EncoderFamily) -> tuple[str, ...]:
    if name in family.tensor_names:
        return family.tensor_names[name]
    layers, layer, rest = name.split(".", 2)
    return tuple(part.format(i=layer) for part in family.tensor_names[f"{layers}.{{i}}.{rest}"])


def _check_parts(weight: FoundWeight, checkpoint: Checkpoint) -> None:
    rows, *columns = weight.shape
    wanted = (rows // len(weight.parts), *columns)
    types = set()
    for part in weight.parts:
        if part not in checkpoint.tensors:
            raise ModelFileError(f"{checkpoint.path}: tensor {part!r} is missing")
        stored = checkpoint.tensors[part]
        types.add(stored.type)
        if stored.shape != wanted:
            raise ModelFileError(
                f"{checkpoint.path}: tensor {stored.name!r} has the shape {list(stored.shape)},"
                f" but the configuration asks for {list(wanted)}"
            )
        if stored.type not in FLOAT_DTYPES:
            raise UnsupportedModelError(
                f"{checkpoint.path}: tensor {stored.name!r} is of type {stored.type}, which is not one we compute with"
            )
    if len(types) > 1:
        raise UnsupportedModelError(f"{checkpoint.path}: {', '.join(weight.parts)} are of several types")
