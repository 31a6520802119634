"""The reference decoders against the gguf package's, to the last bit."""

import gguf
import numpy as np
import pytest
import torch

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.cases import quantized
from trivium.kernels.dequantize import dequantize
from trivium.kernels.weights import QuantizedTensor


@pytest.mark.parametrize("scale", [0.01, 6e4, 1e-7], ids=["usual", "largest", "subnormal"])
@pytest.mark.parametrize("type", QUANT_TYPES)
def test_dequantize_is_what_the_format_says_to_the_last_bit(random: torch.Generator, type: str, scale: float) -> None:
    q = quantized(random, type, 3, 5, 512, scale=scale)
    want = gguf.quants.dequantize(q.data.numpy(), gguf.GGMLQuantizationType[type])
    np.testing.assert_array_equal(dequantize(q, torch.float32).numpy(), want.reshape(q.shape))


def test_dequantize_rounds_once_to_the_wanted_dtype() -> None:
    q = quantized(torch.Generator().manual_seed(0), "Q4_K", 4, 256)
    assert torch.equal(dequantize(q, torch.bfloat16), dequantize(q, torch.float32).bfloat16())


def test_part_of_a_quantized_tensor_is_the_part_of_its_values() -> None:
    q = quantized(torch.Generator().manual_seed(0), "Q4_1", 4, 6, 64)
    whole = dequantize(q, torch.float32)
    assert torch.equal(dequantize(q[2], torch.float32), whole[2])
    assert torch.equal(dequantize(q[1:3], torch.float32), whole[1:3])
    assert torch.equal(dequantize(q[2][torch.tensor([5, 0, 5])], torch.float32), whole[2][[5, 0, 5]])


def test_data_that_does_not_fit_the_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="needs uint8 data"):
        QuantizedTensor("Q8_0", torch.zeros(4, 33, dtype=torch.uint8), (4, 32))
    with pytest.raises(ValueError, match="not whole Q8_0 blocks"):
        QuantizedTensor("Q8_0", torch.zeros(4, 34, dtype=torch.uint8), (4, 33))
