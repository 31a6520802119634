"""x @ weight.T + bias."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.cases import Case, normal, quantized
from trivium.kernels.dequantize import dequantize
from trivium.kernels.few_shapes import compiles_each_shape, linear_in_few_shapes
from trivium.kernels.weights import LinearWeight, QuantizedTensor, stored

TOLERANCE = 1e-5

# A quantized weight is expanded this many elements at a time, so that a vocabulary of 10^5 rows costs little memory; fewer
# on a CPU, where pages of large pieces are cleared each time.
EXPANDED_ELEMENTS = 1 << 18
EXPANDED_ELEMENTS_ON_DEVICE = 1 << 23


def reference(x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
    """x [T, in], weight [out, in], bias [out] -> [T, out] in x.dtype."""
    weight = stored(weight)
    product = linear_in_few_shapes if compiles_each_shape(x.dtype, x.device.type) else F.linear
    if isinstance(weight, QuantizedTensor):
        return by_parts(x, weight, bias, product)
    return product(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def by_parts(
    x: Tensor, weight: QuantizedTensor, bias: Tensor | None, product: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """As `reference`; `product` multiplies x with some rows of the weight, expanded."""
    num_out, num_in = weight.shape
    at_once = EXPANDED_ELEMENTS if x.device.type == "cpu" else EXPANDED_ELEMENTS_ON_DEVICE
    step = max(1, at_once // num_in)
    if step >= num_out:
        y = product(x, dequantize(weight, x.dtype))
    else:
        y = torch.empty((len(x), num_out), dtype=x.dtype, device=x.device)
        for i in range(0, num_out, step):
            y[:, i : i + step] = product(x, dequantize(weight[i : i + step], x.dtype))
    return y if bias is None else y.add_(bias.to(x.dtype))


def cases(random: Generator) -> Iterator[Case]:
    for rows, num_out, num_in in [(1, 1, 1), (1, 7, 5), (3, 65, 33), (2, 130, 67), (33, 40, 576), (128, 96, 64)]:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x, plain = normal(random, rows, num_in), normal(random, num_out, num_in, dtype=dtype)
            yield Case(f"{dtype} {rows}x{num_out}x{num_in}", (x, plain, None))
            yield Case(f"{dtype} {rows}x{num_out}x{num_in} bias", (x, plain, normal(random, num_out)))
    for type in QUANT_TYPES:
        for rows, num_out, num_in in [(7, 1, 256), (1, 77, 768), (2, 5, 512), (5, 33, 256), (67, 64, 1280)]:
            for scale in (0.01, 6e4, 1e-7):  # usual; near the largest float16; subnormal float16
                weight = quantized(random, type, num_out, num_in, scale=scale)
                name = f"{type} {rows}x{num_out}x{num_in} scale {scale}"
                yield Case(name, (normal(random, rows, num_in), weight, normal(random, num_out)))
    for type, num_in in [("Q8_0", 32), ("Q4_0", 96), ("Q4_1", 576), ("Q5_0", 160), ("Q5_1", 32)]:
        yield Case(f"{type} 3x19x{num_in}", (normal(random, 3, num_in), quantized(random, type, 19, num_in), None))
    yield Case("no rows", (normal(random, 0, 64), quantized(random, "Q4_1", 8, 64), None))
