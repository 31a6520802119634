"""How many bytes the values of a step take at most, beside weights and cache, told from the spec: the arithmetic of `Decoder`
and of `Encoder`, without their tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trivium.kernels.few_shapes import products_bytes
from trivium.kernels.linear import EXPANDED_ELEMENTS
from trivium.kernels.ops import Ops
from trivium.kernels.token_slices import TOKENS_AT_ONCE
from trivium.models.encoder import encoder_weight_shapes
from trivium.models.encoder_spec import EncoderSpec
from trivium.models.spec import ModelSpec
from trivium.models.weights import weight_shapes

NATIVE_BYTES = 2 << 20  # of the kernels that steps are compared with now and then, and between small pieces: measured


@dataclass(frozen=True)
class StepMemory:
    """Of a decoder's steps."""

    spec: ModelSpec
    ops: Ops
    dtype: torch.dtype  # of activations
    device: str  # torch's type of it
    num_threads: int
    num_rows: int
    packed_types: frozenset[str] = frozenset()  # of weights

    def most_bytes(self, num_tokens: int, longest: int) -> int:
        """Of steps of up to so many tokens, in sequences of up to `longest`."""
        logits = self.ops.logit_bytes(self.num_rows, self.spec.vocab_size, self.device)
        if self.device == "cpu" and self.ops.tokens_together is None:
            return self._op_by_op(num_tokens, longest, logits)
        together = self.ops.tokens_together(self.packed_types) if self.ops.tokens_together else None
        held = self.spec.activations_held(num_tokens, together) * self.dtype.itemsize
        rotations = self._rotations(num_tokens) if self.device == "cpu" else 0
        return held + logits + rotations + self._attention(longest)

    def _op_by_op(self, num_tokens: int, longest: int, logits: int) -> int:
        """What is large has pages of its own on a CPU, which go when it does: either the layers hold them or the logits do."""
        return max(self.layer_bytes(num_tokens, longest), logits) + self._products()

    def layer_bytes(self, num_tokens: int, longest: int) -> int:
        """Of the layers alone, op by op by the reference, as torch's allocator counts them."""
        spec = self.spec
        hidden, heads, kv = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        # Elements of each token, and the bytes of the work on some of them; the layer's input is there all the time.
        moments = [
            (2 * hidden + heads + 2 * kv, 0),  # the heads are there, and what they were projected from
            (
                hidden + 2 * heads + 3 * kv,
                work_bytes(heads * 3 // 4, self.dtype),
            ),  # they are turned, half of each at a time
            (hidden + 2 * heads, self._attention(longest)),
            ((3 + spec.norm.sandwich) * hidden + heads, 0),  # what they saw is added
        ]
        if spec.moe is None or len(spec.moe.sparse_layers) < spec.num_layers:
            wide = spec.intermediate_size
            moments += [
                (3 * hidden + 2 * wide, 0),
                (2 * hidden + 3 * wide, work_bytes(wide, self.dtype)),
                ((4 + spec.norm.sandwich) * hidden + wide, 0),
            ]
        if spec.moe is not None:
            summed = hidden * 4 // self.dtype.itemsize  # in float32
            of_expert = TOKENS_AT_ONCE * (3 * spec.moe.intermediate_size + hidden) * self.dtype.itemsize
            moments += [
                (3 * hidden + summed, of_expert + work_bytes(spec.moe.intermediate_size, self.dtype)),
                (4 * hidden + summed, 0),
            ]
        most = max(num_tokens * elements * self.dtype.itemsize + work for elements, work in moments)
        return most + self._rotations(num_tokens)

    def _attention(self, longest: int) -> int:
        spec = self.spec
        sizes = (spec.num_heads, spec.num_kv_heads, spec.head_dim, longest)
        return max(self.ops.attention_bytes(*sizes, window) for window in set(spec.windows))

    def _rotations(self, num_tokens: int) -> int:
        """Cosines and sines, float32, of each kind."""
        kinds = {self.spec.rope_of_layer(layer) for layer in range(self.spec.num_layers)}
        return num_tokens * sum(kind.dim for kind in kinds) * 4

    def _products(self) -> int:
        """What they keep of weights of all shapes, and the largest part of a quantized one that is expanded at once."""
        shapes = {shape[-2:] for shape in weight_shapes(self.spec).values() if len(shape) > 1}
        kept = products_bytes(len(shapes), self.dtype, self.device, self.num_threads)
        if self.spec.quantization is None:
            return kept
        return kept + min(EXPANDED_ELEMENTS, max(math.prod(shape) for shape in shapes)) * self.dtype.itemsize


@dataclass(frozen=True)
class EncoderStepMemory:
    """Of an encoder's steps."""

    spec: EncoderSpec
    ops: Ops
    dtype: torch.dtype  # of activations
    device: str  # torch's type of it
    num_threads: int

    def most_bytes(self, num_tokens: int, longest: int) -> int:
        """Of steps of up to so many tokens, in texts of up to `longest`."""
        if self.ops.packing is not None:
            return num_tokens * self._native_elements() * self.dtype.itemsize + NATIVE_BYTES
        hidden, wide, itemsize = self.spec.hidden_size, self.spec.intermediate_size, self.dtype.itemsize
        attending = num_tokens * 5 * hidden * itemsize + longest * hidden * (4 if self.dtype == torch.float32 else 16)
        feeding = num_tokens * (2 * hidden + 2 * wide) * itemsize + work_bytes(wide // 2, self.dtype)  # of one input
        return max(attending, feeding) + self._products()

    def _native_elements(self) -> int:
        """Of each token: results of products, their inputs as they are laid, and keys and values are kept for the next; beside
        them are a layer's input, what attention made of it, and the feed-forward layer."""
        hidden, wide = self.spec.hidden_size, self.spec.intermediate_size
        kept = max(wide, 3 * hidden) + max(wide, hidden) + 2 * hidden
        return kept + 2 * hidden + max(wide, hidden)

    def _products(self) -> int:
        layer = [shape for name, shape in encoder_weight_shapes(self.spec).items() if name.startswith("layers.0.")]
        matrices = {shape for shape in layer if len(shape) > 1}
        return products_bytes(len(matrices), self.dtype, self.device, self.num_threads)


def work_bytes(width: int, dtype: torch.dtype) -> int:
    """Of an op of the reference on so many elements of some tokens: float32 results, and of another dtype its inputs too."""
    return TOKENS_AT_ONCE * width * (8 if dtype == torch.float32 else 16)
