"""In which form weights are packed: as they were stored, as rows of bytes, as units of bytes, or bfloat16 in fewer bits.
Floats are rounded to bytes only for who asks for int8.

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
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from trivium.formats.packed_file import PackedForm
from trivium.kernels.ops import DoesNotFit, Ops, Packing
from trivium.kernels.weights import LinearWeight, PackedTensor, Weight, type_of
from trivium.models.checkpoint import FLOAT_DTYPES
from trivium.models.locate import EMBEDDING, OUTPUT_HEAD, LocatedWeights
from trivium.models.weights import ROUTER_SUFFIX
from trivium.types.errors import ConfigError
from trivium.types.facts import Adjustment

FormWish = Literal["auto", "blocks", "rows", "mixed", "units", "short", "int8"]
BFLOAT16 = "BF16"

log = logging.getLogger(__name__)

# A token then reads this many bytes of weights at most: 13 ms at 20 GB/s, what two slow channels of memory give.
FEW_BYTES = 256 << 20
# Q8_0 has 34 bytes for 32 weights, rows of bytes a little more than 32.
ABOUT_AS_MANY = 1.1


class Stored(NamedTuple):
    """What a form is chosen by."""

    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightForm:
    """What each weight of one model is packed as."""

    packing: Packing | None = None  # lays other forms than blocks; None: every weight stays in its blocks
    name: PackedForm = "blocks"
    chosen: tuple[Adjustment, ...] = ()  # what is said of it, where it is not simply what was asked for

    def packed_types(self, stored: Stored) -> tuple[str, ...]:
        """What the weight may be packed as; the first, if it fits."""
        other = self._other_type(stored)
        if other is None:
            return (stored.type,)
        assert self.packing is not None
        return (other, stored.type) if other == self.packing.short_type else (other,)

    def packed(self, name: str, weight: Weight, ops: Ops) -> LinearWeight:
        if other := self._other_type(Stored(name, type_of(weight), tuple(weight.shape))):
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

    def _other_type(self, stored: Stored) -> str | None:
        """That such a weight is laid in; None: it stays in its blocks."""
        if self.packing is None:
            return None
        is_stack_or_matrix = len(stored.shape) > 1
        match self.name:
            case "short":
                return self.packing.short_type if stored.type == BFLOAT16 and is_stack_or_matrix else None
            case "int8":
                return self.packing.rows_type if can_be_int8(self.packing, stored) else None
        if can_be_rows(self.packing, stored) and (self.name == "rows" or _has_bytes(self.packing, stored)):
            return self.packing.rows_type
        return self.packing.units_types.get(stored.type) if self.name == "units" and is_stack_or_matrix else None


AS_STORED = WeightForm()


def can_be_rows(packing: Packing, stored: Stored) -> bool:
    """Float weights stay what they are, stacks of experts too."""
    return stored.type not in FLOAT_DTYPES and _fits_rows(packing, stored.shape)


def can_be_int8(packing: Packing, stored: Stored) -> bool:
    """Routers stay what they are: a choice of experts turns on the smallest difference."""
    return _fits_rows(packing, stored.shape) and not stored.name.endswith(ROUTER_SUFFIX)


def _fits_rows(packing: Packing, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and packing.takes_rows_of(shape[1])


def as_stored(wish: FormWish, accepts_other: bool, why: str) -> WeightForm:
    """Of a model that has no weight that can be in another form. Raises ConfigError where one was asked for, and nothing else
    is accepted."""
    if wish in ("auto", "blocks"):
        return AS_STORED
    form = {"units": "in units of bytes", "short": "short bfloat16", "int8": "int8"}.get(wish, "in rows of bytes")
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
    if wish == "int8":
        return _int8(packing, weights, accepts_other)
    matrices = [weight for weight in weights if can_be_rows(packing, weight)]
    can_be_units = any(weight.type in packing.units_types for weight in weights)
    short = [weight for weight in weights if weight.type == BFLOAT16]
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


def _int8(packing: Packing, weights: list[Stored], accepts_other: bool) -> WeightForm:
    """What stays as it is stored although int8 was asked for is told."""
    rounded = [weight for weight in weights if can_be_int8(packing, weight)]
    if not rounded:
        return as_stored("int8", accepts_other, "it has no matrix whose columns are a multiple of 64")
    as_is = [weight for weight in weights if not can_be_int8(packing, weight)]
    if not as_is:
        return WeightForm(packing, "int8")
    in_rows = sum(_num_bytes(packing, packing.rows_type, weight.shape) for weight in rounded)
    left = sum(_num_bytes(packing, weight.type, weight.shape) for weight in as_is)
    why = (
        f"{in_rows:,} bytes of {len(rounded)} weights; {left:,} of {len(as_is)} that cannot be stay as they are stored"
    )
    return _told(packing, "int8", why)


def _best_form(packing: Packing, matrices: list[Stored], as_units: bool) -> WeightForm:
    """`matrices`: weights that can be rows; `as_units`: some weights can be units of bytes, and fast."""
    in_blocks = sum(_num_bytes(packing, weight.type, weight.shape) for weight in matrices)
    in_rows = sum(_num_bytes(packing, packing.rows_type, weight.shape) for weight in matrices)
    of_bytes = [_has_bytes(packing, weight) for weight in matrices]
    amounts = f"{in_rows:,} bytes as rows of bytes, {in_blocks:,} in blocks"
    if matrices and (all(of_bytes) or (packing.sums_bytes and in_rows <= FEW_BYTES)):
        return _told(packing, "rows", f"faster prompts and batches: {amounts}")
    why = f"a single token reads fewer bytes: {amounts}"
    if as_units:
        return _told(packing, "units", f"faster prompts and batches with K types rounded to bytes; no rows: {why}")
    if any(of_bytes):
        return _told(packing, "mixed", f"rows where blocks have as many bytes, else blocks: {why}")
    return _told(None, "blocks", why)


def _told_of_short(packing: Packing, weights: list[Stored]) -> WeightForm:
    as_is, in_short = (
        sum(_num_bytes(packing, type, weight.shape) for weight in weights) for type in (BFLOAT16, packing.short_type)
    )
    why = f"the same bfloat16 in fewer bits, which single tokens wait for: {in_short:,} bytes instead of {as_is:,}"
    return _told(packing, "short", why)


def _told(packing: Packing | None, name: PackedForm, why: str) -> WeightForm:
    return WeightForm(packing, name, (Adjustment("weight_form", name, why),))


def _num_bytes(packing: Packing, type: str, shape: tuple[int, ...]) -> int:
    return math.prod(packing.data_shape(type, shape))


def _has_bytes(packing: Packing, weight: Stored) -> bool:
    """Whether its rows have about as many bytes as its blocks."""
    in_rows = _num_bytes(packing, packing.rows_type, weight.shape)
    return in_rows <= ABOUT_AS_MANY * _num_bytes(packing, weight.type, weight.shape)


def _multiplied(located: LocatedWeights) -> list[Stored]:
    """Weights that activations are multiplied by."""
    weights = [weight for weight in located.found if weight.name != EMBEDDING]
    if located.spec.tied_embeddings:
        weights.append(replace(located.found[0], name=OUTPUT_HEAD))
    return [
        Stored(weight.name, weight.type(located.checkpoint), weight.shape)
        for weight in weights
        if len(weight.shape) > 1
    ]
