"""The tensor types we read from GGUF files, and how their elements are packed."""

from __future__ import annotations

from msgspec import Struct


class QuantType(Struct, frozen=True):
    """A type of tensor data: a row is a whole number of blocks, each a fixed number of elements in a fixed number of bytes."""

    name: str
    gguf_id: int
    block_elements: int
    block_bytes: int


# Numbers of the GGUF specification (ggml's `ggml_type` and its block structs).
QUANT_TYPES: dict[str, QuantType] = {
    type.name: type
    for type in (
        QuantType("F32", 0, 1, 4),
        QuantType("F16", 1, 1, 2),
        QuantType("BF16", 30, 1, 2),
        QuantType("Q8_0", 8, 32, 34),
        QuantType("Q4_0", 2, 32, 18),
        QuantType("Q4_1", 3, 32, 20),
        QuantType("Q5_0", 6, 32, 22),
        QuantType("Q5_1", 7, 32, 24),
        QuantType("Q2_K", 10, 256, 84),
        QuantType("Q3_K", 11, 256, 110),
        QuantType("Q4_K", 12, 256, 144),
        QuantType("Q5_K", 13, 256, 176),
        QuantType("Q6_K", 14, 256, 210),
    )
}

QUANT_TYPES_BY_GGUF_ID: dict[int, QuantType] = {type.gguf_id: type for type in QUANT_TYPES.values()}

# Types that exist but that we do not run: named, so that the refusal can say what the file holds.
UNREAD_GGUF_TYPES: dict[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
