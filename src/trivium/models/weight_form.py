"""In which form weights are packed: as they were stored, as rows of bytes, as units of bytes, or bfloat16 in fewer bits.

Rows of bytes are multiplied faster wherever many tokens meet a weight (a prompt, a batch), and most of all by tiles; a single
token waits for the bytes to be read, and those of four-bit blocks are half as many. So weights of eight bits always become
rows, and others where few bytes are read. Instruction sets that have to widen bytes (AVX2) multiply blocks of fewer
bits faster: there only weights of eight bits do.

Units of bytes take as much memory as the blocks of K types do and are multiplied nearly as fast as rows, where bytes can be made
of their bits fast enough.

Short bfloat16 is bfloat16 to the bit in three quarters of the bytes, for which a single token waits. A weight whose exponents are
too many for it stays as it is stored.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from trivium.formats.packed_file import PackedForm
from trivium.kernels.ops import DoesNotFit, Ops, Packing
from trivium.kernels.weights import LinearWeight, PackedTensor, Weight, type_of
from trivium.models.checkpoint import FLOAT_DTYPES
from trivium.models.locate import EMBEDDING, LocatedWeights
from trivium.types.errors import ConfigError
from trivium.types.facts import Adjustment

FormWish = Literal["auto", "blocks", "rows", "mixed", "units", "short"]
BFLOAT16 = "BF16"

log = logging.getLogger(__name__)

# A token then reads this many bytes of weights at most: 13 ms at 20 GB/s, what two slow channels of memory give.
FEW_BYTES = 256 << 20
# Q8_0 has 34 bytes for 32 weights, rows of bytes a little more than 32.
ABOUT_AS_MANY = 1.1

TypedShape = tuple[str, tuple[int, ...]]  # of a weight as it is stored


@dataclass(frozen=True)
class WeightForm:
    """What each weight of one model is packed as."""

    packing: Packing | None = None  # lays other forms than blocks; None: every weight stays in its blocks
    name: PackedForm = "blocks"
    chosen: tuple[Adjustment, ...] = ()  # what is said of it, where it is not simply what was asked for

    def packed_types(self, type: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """What a weight that is stored in that type may be packed as; the first, if it fits."""
        other = self._other_type(type, shape)
        if other is None:
            return (type,)
        assert self.packing is not None
        return (other, type) if other == self.packing.short_type else (other,)

    def packed(self, weight: Weight, ops: Ops) -> LinearWeight:
        if other := self._other_type(type_of(weight), tuple(weight.shape)):
            assert self.packing is not None
            try:
                return self.packing.pack_as(weight, other)
            except DoesNotFit as error:
                log.debug("kept as it is stored: %s", error)
        return ops.prepare(weight)

    def tell_what_did_not_fit(self, packed: Collection[LinearWeight]) -> None:
        if self.packing is None or self.name != "short":
            return
        types = Counter(weight.type for weight in packed if isinstance(weight, PackedTensor))
        if types[BFLOAT16]:
            log.warning(
                "%d of %d bfloat16 weights have too many exponents to be short and take more memory than was planned",
                types[BFLOAT16],
                types[BFLOAT16] + types[self.packing.short_type],
            )

    def _other_type(self, type: str, shape: tuple[int, ...]) -> str | None:
        """That such a weight is laid in; None: it stays in its blocks."""
        if self.packing is None:
            return None
        if self.name == "short":
            return self.packing.short_type if type == BFLOAT16 and len(shape) > 1 else None
        if can_be_rows(self.packing, type, shape) and (self.name == "rows" or _has_bytes(self.packing, type, shape)):
            return self.packing.rows_type
        return self.packing.units_types.get(type) if self.name == "units" and len(shape) > 1 else None


AS_STORED = WeightForm()


def can_be_rows(packing: Packing, type: str, shape: tuple[int, ...]) -> bool:
    """Float weights stay what they are, stacks of experts too."""
    return type not in FLOAT_DTYPES and len(shape) == 2 and packing.takes_rows_of(shape[1])


def as_stored(wish: FormWish, accepts_other: bool, why: str) -> WeightForm:
    """Of a model that has no weight that can be in another form. Raises ConfigError where one was asked for, and nothing else
    is accepted."""
    if wish in ("auto", "blocks"):
        return AS_STORED
    form = {"units": "in units of bytes", "short": "short bfloat16"}.get(wish, "in rows of bytes")
    reason = f"weight_form={wish}: no weight of this model can be {form}: {why}"
    if not accepts_other:
        raise ConfigError(reason)
    return WeightForm(chosen=(Adjustment("weight_form", "blocks", reason),))


def choose_form(wish: FormWish, located: LocatedWeights, ops: Ops, accepts_other: bool = False) -> WeightForm:
    """Raises ConfigError where a form was asked for, no weight can be in it, and nothing else is accepted."""
    packing = ops.packing
    if packing is None:
        return as_stored(wish, accepts_other, "the native kernels do not run its layers")
    weights = _multiplied(located)
    matrices = [(type, shape) for type, shape in weights if can_be_rows(packing, type, shape)]
    can_be_units = any(type in packing.units_types for type, _ in weights)
    short = [(type, shape) for type, shape in weights if type == BFLOAT16]
    if wish == "short":
        return WeightForm(packing, wish) if short else as_stored(wish, accepts_other, f"it has no matrix of {BFLOAT16}")
    if wish == "auto" and short and not matrices and not can_be_units and packing.lengthens:
        return _told_of_short(packing, short)
    if not matrices and not can_be_units:
        return as_stored(wish, accepts_other, "it has no quantized matrix that can be")
    if wish == "units" and not can_be_units:
        return as_stored(wish, accepts_other, f"it has none of {', '.join(packing.units_types)}")
    if wish in ("rows", "mixed") and not matrices:
        return as_stored(wish, accepts_other, "it has no quantized matrix that can be")
    if wish != "auto":
        return AS_STORED if wish == "blocks" else WeightForm(packing, wish)
    return _best_form(packing, matrices, can_be_units and packing.makes_bytes)


def _best_form(packing: Packing, matrices: list[TypedShape], as_units: bool) -> WeightForm:
    """`matrices`: weights that can be rows; `as_units`: some weights can be units of bytes, and fast."""
    in_blocks = sum(_num_bytes(packing, type, shape) for type, shape in matrices)
    in_rows = sum(_num_bytes(packing, packing.rows_type, shape) for _, shape in matrices)
    of_bytes = [_has_bytes(packing, type, shape) for type, shape in matrices]
    amounts = f"{in_rows:,} bytes as rows of bytes, {in_blocks:,} in blocks"
    if matrices and (all(of_bytes) or (packing.sums_bytes and in_rows <= FEW_BYTES)):
        return _told(packing, "rows", f"faster prompts and batches: {amounts}")
    why = f"a single token reads fewer bytes: {amounts}"
    if as_units:
        return _told(packing, "units", f"faster prompts and batches with K types rounded to bytes; no rows: {why}")
    if any(of_bytes):
        return _told(packing, "mixed", f"rows where blocks have as many bytes, else blocks: {why}")
    return _told(None, "blocks", why)


def _told_of_short(packing: Packing, weights: list[TypedShape]) -> WeightForm:
    as_is, in_short = (
        sum(_num_bytes(packing, type, shape) for _, shape in weights) for type in (BFLOAT16, packing.short_type)
    )
    why = f"the same bfloat16 in fewer bits, which single tokens wait for: {in_short:,} bytes instead of {as_is:,}"
    return _told(packing, "short", why)


def _told(packing: Packing | None, name: PackedForm, why: str) -> WeightForm:
    return WeightForm(packing, name, (Adjustment("weight_form", name, why),))


def _num_bytes(packing: Packing, type: str, shape: tuple[int, ...]) -> int:
    return math.prod(packing.data_shape(type, shape))


def _has_bytes(packing: Packing, type: str, shape: tuple[int, ...]) -> bool:
    """Whether its rows have about as many bytes as its blocks."""
    return _num_bytes(packing, packing.rows_type, shape) <= ABOUT_AS_MANY * _num_bytes(packing, type, shape)


def _multiplied(located: LocatedWeights) -> list[TypedShape]:
    """Weights that activations are multiplied by."""
    weights = [weight for weight in located.found if weight.name != EMBEDDING]
    if located.spec.tied_embeddings:
        weights.append(located.found[0])  # as the output head
    return [(weight.type(located.checkpoint), weight.shape) for weight in weights if len(weight.shape) > 1]
