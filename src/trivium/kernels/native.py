"""The ops by the C++ extension `trivium._native`: float32 activations, every weight type.

Activations of another dtype go to the reference, and each such call is counted with its reason.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from trivium.kernels import activate, embed, experts, gated, layer_norm, linear, rms_norm, rotary, sample
from trivium.kernels.activate import ElementFunction
from trivium.kernels.attention import AttentionBatch
from trivium.kernels.gated import Activation
from trivium.kernels.large_pages import LargePages
from trivium.kernels.logit_memory import BYTES_OF_LOGIT, REFERENCE_WORK_BYTES, held_logits
from trivium.kernels.ops import DoesNotFit, Packing
from trivium.kernels.result_memory import ResultMemory
from trivium.kernels.sample import SampleBatch
from trivium.kernels.weights import (
    FLOAT_TYPE_NAMES,
    LinearWeight,
    PackedTensor,
    QuantizedTensor,
    Weight,
    type_of,
)
from trivium.platform.cpu import usable_threads
from trivium.types.errors import ConfigError

INTERFACE_VERSION = 9  # of native/src/module.cpp: a change of what it offers or takes changes the number in both
# Of native/src/packed.h and of what models/load.py does to a weight before it is packed: a change of either changes it.
LAYOUT_VERSION = 1
TILE_ROWS = 16  # rows of a packed weight that lie together
SAMPLE_BYTES = 32  # of each token of the vocabulary, kept by each thread that chooses tokens (SampleScratch of ops.h)
BYTE_ROWS = "BYTE_ROWS"  # of packed.h, as the next
UNITS_OF_BYTES = {"Q4_K": "Q4_K_UNITS", "Q5_K": "Q5_K_UNITS", "Q6_K": "Q6_K_UNITS"}
SHORT_BFLOAT16 = "SHORT_BF16"
TYPES_OF_FLOATS = frozenset({*FLOAT_TYPE_NAMES.values(), SHORT_BFLOAT16})  # multiplied as floats


def load_extension() -> ModuleType:
    """Raises ConfigError with the reason where the extension was not built, cannot be loaded or is of other sources."""
    try:
        extension = import_module("trivium._native")
    except ModuleNotFoundError as error:
        reason = "trivium was installed without them, as no C++ compiler worked"
        raise ConfigError(f"the native kernels are not here: {reason}") from error
    except ImportError as error:
        raise ConfigError(f"the native kernels cannot be loaded: {error}") from error
    if getattr(extension, "interface_version", None) != INTERFACE_VERSION:
        raise ConfigError("the native kernels were built from other sources than this trivium's: install it again")
    return extension


# Instruction sets without exact sums of products of bytes: they multiply words of 16 bits (kernels/byte_rows_by_words.h).
WIDENING_SETS = frozenset({"avx2", "avx512"})
# Those that make bytes of units (kernels/unit_bytes.h) by vectors.
UNITS_SETS = frozenset({"avx512_vnni", "avx512_bf16", "amx"})
# Those on which bfloat16 made of short weights (kernels/short_bf16.h) was seen to be no slower than bfloat16 that is read.
LENGTHENING_SETS = frozenset({"avx2", "avx512", "avx512_vnni", "avx512_bf16"})
# That multiply four bytes as fast as two bfloat16; AMX would by tiles, which attention has for bfloat16 only.
BYTE_CACHE_SETS = frozenset({"avx512_vnni", "avx512_bf16"})


def usable_instruction_sets() -> list[str]:
    """Of those built, the ones that a trial on this machine found good; best last."""
    return [name for name, usable, _ in load_extension().instruction_sets() if usable]


def native_state() -> str:
    """What runs on this machine, in words for a person."""
    try:
        return f"native kernels run with {usable_instruction_sets()[-1]}"
    except ConfigError as error:
        return f"{error}; the torch reference runs"


class NativeKernels:
    """One instruction set and one pool of threads."""

    def __init__(self, instruction_set: str | None = None, num_threads: int | None = None) -> None:
        extension = load_extension()
        self.instruction_set = instruction_set or usable_instruction_sets()[-1]
        self.num_threads = num_threads or usable_threads()[0]
        self.fallbacks: Counter[str] = Counter()
        self._memory = LargePages()
        self._results = ResultMemory()
        try:
            self.kernels: Any = extension.Kernels(self.instruction_set, self.num_threads)
        except ValueError as error:
            usable = ", ".join(usable_instruction_sets())
            raise ConfigError(f"{error}; this machine runs {usable}") from error

    def prepare(self, weight: Weight) -> LinearWeight:
        """Matrices, and stacks of them, are laid in tiles: GGUF blocks for sums of whole numbers over quantized
        activations, float types for sums of the same order in any batch."""
        if len(weight.shape) < 2:
            return weight
        return self._packed(weight, type_of(weight))

    def _packed(self, weight: Weight, type: str) -> PackedTensor:
        shape = tuple(weight.shape)
        packed = self._memory.empty(packed_shape(type, shape))
        if not self.kernels.pack(*_parts(weight), packed, type):
            raise DoesNotFit(f"a weight of shape {shape} has too many exponents for {type}")
        return PackedTensor(type, packed, shape)

    @property
    def packing(self) -> Packing:
        return Packing(
            LAYOUT_VERSION,
            packed_shape,
            self.kernels.checksum,
            self._memory,
            self._packed,
            BYTE_ROWS,
            load_extension().can_be_byte_rows,
            UNITS_OF_BYTES,
            SHORT_BFLOAT16,
            sums_bytes=self.instruction_set not in WIDENING_SETS,
            makes_bytes=self.instruction_set in UNITS_SETS,
            lengthens=self.instruction_set in LENGTHENING_SETS,
        )

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        if not isinstance(weight, PackedTensor):
            self.fallbacks["linear: a weight that was not prepared"] += 1
            return linear.reference(x, weight, bias)
        out = self._results.empty((x.shape[0], weight.shape[0]))
        self.kernels.packed_linear(_dense_rows(x.float()), weight.data, weight.type, _float32(bias), out)
        return out.to(x.dtype)

    def embed(self, ids: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
        if not self._takes("embed", dtype):
            return embed.reference(ids, weight, dtype)
        out = torch.empty((ids.shape[0], weight.shape[1]), dtype=torch.float32)
        self.kernels.embed(ids.contiguous(), *_parts(weight), out)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if not self._takes("rms_norm", x.dtype):
            return rms_norm.reference(x, weight, eps)
        out = torch.empty(x.shape, dtype=torch.float32)
        self.kernels.rms_norm(x.contiguous(), _float32(weight), eps, out)
        return out

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        if not self._takes("rotary", q.dtype):
            return rotary.reference(q, k, cos, sin)
        q_out, k_out = torch.empty(q.shape, dtype=torch.float32), torch.empty(k.shape, dtype=torch.float32)
        self.kernels.rotary(_dense_rows(q), _dense_rows(k), cos.contiguous(), sin.contiguous(), q_out, k_out)
        return q_out, k_out

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        if not self._takes("gated", gate.dtype):
            return gated.reference(gate, up, activation)
        out = torch.empty(gate.shape, dtype=torch.float32)
        self.kernels.gated(_dense_rows(gate), _dense_rows(up), activation, out)
        return out

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        if not self._takes("layer_norm", x.dtype):
            return layer_norm.reference(x, weight, bias, eps)
        out = torch.empty(x.shape, dtype=torch.float32)
        self.kernels.layer_norm(x.contiguous(), _float32(weight), _float32(bias), eps, out)
        return out

    def activate(self, x: Tensor, function: ElementFunction) -> Tensor:
        if not self._takes("activate", x.dtype):
            return activate.reference(x, function)
        out = torch.empty(x.shape, dtype=torch.float32)
        self.kernels.activate(_dense_rows(x), function, out)
        return out

    def text_attention(
        self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, scale: float, reach: int | None
    ) -> Tensor:
        """Of any dtype, computed with in float32."""
        out = torch.empty(q.shape, dtype=torch.float32)
        parts = (_dense_rows(part.float()) for part in (q, k, v))
        self.kernels.text_attention(*parts, starts.contiguous(), scale, reach, out)
        return out.to(q.dtype)

    # The caches of both ops: kv_layout.LaneLayout. Activations of any dtype are computed with in float32.

    def write_kv(self, k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        self.kernels.write_kv(
            _dense_rows(k.float()), _dense_rows(v.float()), key_cache, value_cache, slots.contiguous()
        )

    def paged_attention(
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        out = torch.empty(q.shape, dtype=torch.float32)
        self.kernels.paged_attention(
            _dense_rows(q.float()),
            key_cache,
            value_cache,
            batch.query_starts.contiguous(),
            batch.context_lens.contiguous(),
            batch.block_table.contiguous(),
            scale,
            window,
            softcap,
            out,
        )
        return out.to(q.dtype)

    def route(self, logits: Tensor, top_k: int, normalized: bool) -> tuple[Tensor, Tensor]:
        ids = torch.empty((logits.shape[0], top_k), dtype=torch.int64)
        shares = torch.empty((logits.shape[0], top_k), dtype=torch.float32)
        self.kernels.route(logits.float().contiguous(), normalized, ids, shares)
        return ids, shares

    def experts(
        self,
        x: Tensor,
        ids: Tensor,
        shares: Tensor,
        gate: LinearWeight,
        up: LinearWeight,
        down: LinearWeight,
        activation: Activation,
    ) -> Tensor:
        if not (isinstance(gate, PackedTensor) and isinstance(up, PackedTensor) and isinstance(down, PackedTensor)):
            self.fallbacks["experts: weights that were not prepared"] += 1
            return experts.reference(x, ids, shares, gate, up, down, activation)
        out = torch.empty(x.shape, dtype=torch.float32)
        self.kernels.experts(
            _dense_rows(x.float()),
            ids.contiguous(),
            shares.contiguous(),
            *expert_parts(gate, up, down),
            activation,
            out,
        )
        return out.to(x.dtype)

    def sample(self, logits: Tensor, batch: SampleBatch) -> Tensor:
        draws, penalties, biases, masks = batch.draws, batch.penalties, batch.biases, batch.masks
        out = torch.empty(len(logits), dtype=torch.int64)
        self.kernels.sample(
            logits,
            None if draws is None else draws.columns,
            penalties and (penalties.rows, penalties.amounts, penalties.history, penalties.spans),
            biases and (biases.starts, biases.tokens, biases.values),
            masks and (masks.rows, masks.bits),
            out,
        )
        if draws is not None and draws.typical:
            self.fallbacks["sample: typical_p"] += 1
            for m in (draws.typical_p < 1).nonzero().flatten().tolist():
                out[m : m + 1] = sample.reference(logits[m : m + 1], batch.of_row(m))
        return out

    def logprobs(self, logits: Tensor, tokens: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
        scores = torch.empty((len(logits), 1 + num_top), dtype=torch.float64)
        places = torch.empty((len(logits), 1 + num_top), dtype=torch.int64)
        self.kernels.logprobs(logits, tokens.contiguous(), scores, places)
        return scores, places

    def logit_bytes(self, num_rows: int, num_tokens: int, device: str) -> int:
        work = min(self.num_threads, num_rows) * SAMPLE_BYTES + REFERENCE_WORK_BYTES  # of one row with typical_p
        return held_logits(num_rows, num_tokens) * BYTES_OF_LOGIT + num_tokens * work

    def _takes(self, op: str, dtype: torch.dtype) -> bool:
        if dtype == torch.float32:
            return True
        self.fallbacks[f"{op}: {dtype} activations".replace("torch.", "")] += 1
        return False


def packed_shape(type: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of the bytes of a packed weight [..., out, in]: [..., tiles, bytes of a tile]."""
    *stack, rows, columns = shape
    return (*stack, -(-rows // TILE_ROWS), load_extension().packed_tile_bytes(type, columns))


def expert_parts(gate: PackedTensor, up: PackedTensor, down: PackedTensor) -> tuple[Any, ...]:
    """As the extension takes them, with the rows of gate and up, which their bytes do not tell."""
    num_experts, wide, hidden = gate.shape
    if up.shape != gate.shape or down.shape != (num_experts, hidden, wide):
        raise ValueError(f"experts of gate {gate.shape}, up {up.shape} and down {down.shape} do not fit together")
    return (gate.data, gate.type, up.data, up.type, down.data, down.type, wide)


def _parts(weight: Weight) -> tuple[Tensor, str | None]:
    return (weight.data, weight.type) if isinstance(weight, QuantizedTensor) else (weight, None)


def _float32(x: Tensor | None) -> Tensor | None:
    return x if x is None or x.dtype == torch.float32 else x.float()


def _dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
