"""Model files written byte by byte, so that a test can lie about any number in them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10

# Values that break careless arithmetic when they stand where a count, a size or an offset should.
NASTY_NUMBERS = (0, 1, 7, 8, 31, 255, 1 << 16, (1 << 20) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32)
NASTY_NUMBERS += ((1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data) if length is None else length) + data


def string_value(value: str | bytes, length: int | None = None) -> bytes:
    return struct.pack("<I", STRING) + text(value, length)


def uint32_value(value: int) -> bytes:
    return struct.pack("<II", UINT32, value)


def array_value(item_type: int, items: list[bytes], count: int | None = None) -> bytes:
    return struct.pack("<I", ARRAY) + array_body(item_type, items, count)


def array_body(item_type: int, items: list[bytes], count: int | None = None) -> bytes:
    return struct.pack("<IQ", item_type, len(items) if count is None else count) + b"".join(items)


@dataclass
class RawTensor:
    name: str | bytes = "weight"
    dims: tuple[int, ...] = (32, 2)  # innermost first, as the file has it
    type: int = 0  # F32
    offset: int = 0
    num_dims: int | None = None

    def table_entry(self) -> bytes:
        head = text(self.name) + struct.pack("<I", len(self.dims) if self.num_dims is None else self.num_dims)
        return head + struct.pack(f"<{len(self.dims)}Q", *self.dims) + struct.pack("<IQ", self.type, self.offset)


def gguf_bytes(
    keys: list[tuple[str | bytes, bytes]] | None = None,
    tensors: list[RawTensor] | None = None,
    data: bytes | None = None,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    key_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    keys = [("general.architecture", string_value("llama"))] if keys is None else keys
    tensors = [RawTensor()] if tensors is None else tensors
    head = magic + struct.pack("<I", version)
    head += struct.pack("<Q", len(tensors) if tensor_count is None else tensor_count)
    head += struct.pack("<Q", len(keys) if key_count is None else key_count)
    head += b"".join(text(key) + value for key, value in keys)
    head += b"".join(tensor.table_entry() for tensor in tensors)
    head += bytes(-len(head) % alignment)
    return head + (bytes(range(256)) if data is None else data)


def rich_gguf_bytes() -> bytes:
    """A small valid file with every kind of thing in it, for mutation."""
    keys = [
        ("general.architecture", string_value("llama")),
        ("general.alignment", uint32_value(32)),
        ("llama.block_count", uint32_value(2)),
        ("llama.rope.freq_base", struct.pack("<If", FLOAT32, 10000.0)),
        ("tokenizer.ggml.add_bos_token", struct.pack("<I?", BOOL, True)),
        ("tokenizer.ggml.tokens", array_value(STRING, [text(f"tök{i}") for i in range(12)])),
        ("tokenizer.ggml.token_type", array_value(INT32, [struct.pack("<i", 1)] * 12)),
        (
            "nested",
            array_value(ARRAY, [array_body(UINT32, [struct.pack("<I", 7)] * 3), array_body(STRING, [text("a")])]),
        ),
    ]
    tensors = [
        RawTensor("token_embd.weight", (64, 4), 8, 0),  # Q8_0: 8 blocks of 34 bytes
        RawTensor("blk.0.attn_norm.weight", (16,), 0, 288),
        RawTensor("blk.0.ffn_up.weight", (256, 1, 1), 14, 352),  # Q6_K: 210 bytes
    ]
    return gguf_bytes(keys, tensors, bytes(352 + 224))


def safetensors_bytes(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def rich_safetensors_bytes() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
        "empty": {"dtype": "U8", "shape": [0, 5], "data_offsets": [32, 32]},
        "scalar": {"dtype": "I64", "shape": [], "data_offsets": [32, 40]},
    }
    return safetensors_bytes(header, bytes(range(40)))


def mutations(original: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The file truncated at every byte, then `count` random damages: flips, nasty numbers, cuts and doublings."""
    for end in range(len(original)):
        yield original[:end]
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(original)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(len(data))
            match rng.randrange(5):
                case 0:
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, ord('"'), ord("{"), ord("["), ord("9")))
                case 2:
                    size = rng.choice((4, 8))
                    number = rng.choice(NASTY_NUMBERS) % (1 << (8 * size))
                    data[at : at + size] = number.to_bytes(size, "little")
                case 3:
                    del data[at : at + rng.randrange(1, 40)]
                case 4:
                    data[at:at] = data[at : at + rng.randrange(1, 40)]
            if not data:
                break
        yield bytes(data)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
