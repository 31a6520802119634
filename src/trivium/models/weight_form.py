"""In which form quantized weights are packed: in the blocks they were stored in, or as rows of bytes.

Rows of bytes are multiplied faster wherever many tokens meet a weight (a prompt, a batch), and most of all by tiles; a single
token waits for the bytes to be read, and those of four-bit blocks are half as many. So weights of eight bits always become
rows, and others where few bytes are read. Instruction sets that have to widen bytes (AVX2) multiply blocks of fewer
bits faster: there only weights of eight bits do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trivium.formats.packed_file import PackedForm
from trivium.kernels.ops import Ops, Packing
from trivium.kernels.weights import LinearWeight, QuantizedTensor, Weight
from trivium.models.checkpoint import FLOAT_DTYPES
from trivium.models.locate import EMBEDDING, LocatedWeights
from trivium.types.errors import ConfigError
from trivium.types.facts import Adjustment

FormWish = Literal["auto", "blocks", "rows", "mixed"]

# A token then reads this many bytes of weights at most: 13 ms at 20 GB/s, what two slow channels of memory give.
FEW_BYTES = 256 << 20
# Q8_0 has 34 bytes for 32 weights, rows of bytes a little more than 32.
ABOUT_AS_MANY = 1.1


@dataclass(frozen=True)
class WeightForm:
    """What each weight of one model is packed as."""

    rows: Packing | None = None  # lays rows of bytes; None: every weight stays in its blocks
    chosen: tuple[Adjustment, ...] = ()  # what is said of it, where it is not simply what was asked for
    only_bytes: bool = False  # rows are weights only whose blocks have about as many bytes

    @property
    def name(self) -> PackedForm:
        if self.rows is None:
            return "blocks"
        return "mixed" if self.only_bytes else "rows"

    def packed_type(self, type: str, shape: tuple[int, ...]) -> str:
        """Of a weight that is stored in that type."""
        packing = self._packing_of(type, shape)
        return type if packing is None else packing.rows_type

    def packed(self, weight: Weight, ops: Ops) -> LinearWeight:
        if isinstance(weight, QuantizedTensor) and (packing := self._packing_of(weight.type, weight.shape)):
            return packing.pack_rows(weight)
        return ops.prepare(weight)

    def _packing_of(self, type: str, shape: tuple[int, ...]) -> Packing | None:
        """That lays such a weight in rows; None: it stays in its blocks."""
        if self.rows is None or not can_be_rows(self.rows, type, shape):
            return None
        return None if self.only_bytes and not _has_bytes(self.rows, type, shape) else self.rows


AS_STORED = WeightForm()


def can_be_rows(packing: Packing, type: str, shape: tuple[int, ...]) -> bool:
    """Float weights stay what they are, stacks of experts too."""
    return type not in FLOAT_DTYPES and len(shape) == 2 and packing.takes_rows_of(shape[1])


def as_stored(wish: FormWish, accepts_other: bool, why: str) -> WeightForm:
    """Of a model that has no weight that can be in rows. Raises ConfigError where they were asked for, and nothing else is
    accepted."""
    if wish in ("auto", "blocks"):
        return AS_STORED
    reason = f"weight_form={wish}: no weight of this model can be in rows of bytes: {why}"
    if not accepts_other:
        raise ConfigError(reason)
    return WeightForm(None, (Adjustment("weight_form", "blocks", reason),))


def choose_form(wish: FormWish, located: LocatedWeights, ops: Ops, accepts_other: bool = False) -> WeightForm:
    """Raises ConfigError where rows were asked for, no weight can be in rows, and nothing else is accepted."""
    packing = ops.packing
    if packing is None:
        return as_stored(wish, accepts_other, "the native kernels do not run its layers")
    turned = _that_can_be_rows(packing, located)
    if not turned:
        return as_stored(wish, accepts_other, "it has no quantized matrix that can be")
    if wish != "auto":
        return WeightForm(packing if wish != "blocks" else None, only_bytes=wish == "mixed")
    in_blocks = sum(_num_bytes(packing, type, shape) for type, shape in turned)
    in_rows = sum(_num_bytes(packing, packing.rows_type, shape) for _, shape in turned)
    of_bytes = [_has_bytes(packing, type, shape) for type, shape in turned]
    amounts = f"{in_rows:,} bytes as rows of bytes, {in_blocks:,} in blocks"
    if all(of_bytes) or (packing.sums_bytes and in_rows <= FEW_BYTES):
        return WeightForm(packing, (Adjustment("weight_form", "rows", f"faster prompts and batches: {amounts}"),))
    why = f"a single token reads fewer bytes: {amounts}"
    if any(of_bytes):
        told = Adjustment("weight_form", "mixed", f"rows where blocks have as many bytes, else blocks: {why}")
        return WeightForm(packing, (told,), only_bytes=True)
    return WeightForm(None, (Adjustment("weight_form", "blocks", why),))


def _num_bytes(packing: Packing, type: str, shape: tuple[int, ...]) -> int:
    return math.prod(packing.data_shape(type, shape))


def _has_bytes(packing: Packing, type: str, shape: tuple[int, ...]) -> bool:
    """Whether its rows have about as many bytes as its blocks."""
    return _num_bytes(packing, packing.rows_type, shape) <= ABOUT_AS_MANY * _num_bytes(packing, type, shape)


def _that_can_be_rows(packing: Packing, located: LocatedWeights) -> list[tuple[str, tuple[int, ...]]]:
    """Type and shape of each."""
    weights = [weight for weight in located.found if weight.name != EMBEDDING]
    if located.spec.tied_embeddings:
        weights.append(located.found[0])  # as the output head
    typed = ((weight.type(located.checkpoint), weight.shape) for weight in weights)
    return [(type, shape) for type, shape in typed if can_be_rows(packing, type, shape)]
