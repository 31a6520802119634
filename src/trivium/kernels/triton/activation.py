"""The activations of gated layers, inside kernels."""

import triton
import triton.language as tl


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """x float32."""
    if ACTIVATION == "silu":
        return x * tl.sigmoid(x)
    # tanh(u) = 2 * sigmoid(2u) - 1
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
