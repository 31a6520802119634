"""A damaged or lying GGUF file is refused in one sentence: no crash, no hang, no memory, no byte from outside it."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from raw_files import (
    ARRAY,
    STRING,
    UINT32,
    UINT64,
    RawTensor,
    array_body,
    array_value,
    gguf_bytes,
    mutations,
    rich_gguf_bytes,
    string_value,
    text,
    uint32_value,
    write,
)

from trivium.formats.gguf import MAX_TENSORS, GGUFFile
from trivium.formats.gguf_metadata import MAX_ARRAY_ITEMS
from trivium.types.errors import ModelFileError, TriviumError, UnsupportedModelError


def use_everything(path: Path) -> None:
    """Open the file and touch every value and every byte it offers."""
    with GGUFFile.open(path) as file:
        for key in file.metadata:
            file.metadata[key]
        for name, tensor in file.tensors.items():
            data = file.read(name)
            assert data.nbytes == tensor.nbytes <= path.stat().st_size
            data.sum()


def keyed(key: str | bytes, value: bytes) -> bytes:
    return gguf_bytes([(key, value)])


LIES = {
    "empty": (b"", "is empty"),
    "too short": (b"GG", "magic number at byte 0 needs 4 bytes, but the file ends after 2"),
    "magic": (gguf_bytes(magic=b"GGML"), "begins with b'GGML', not b'GGUF'"),
    "tensor count": (gguf_bytes(tensor_count=1 << 63), f"claims {1 << 63} tensors"),
    "tensor count by one": (gguf_bytes(tensor_count=2, data=b""), "but the file ends"),
    "key count": (gguf_bytes(key_count=(1 << 64) - 1), f"claims {(1 << 64) - 1} metadata keys"),
    "key twice": (gguf_bytes([("a", uint32_value(1)), ("a", uint32_value(2))]), "key 'a' appears twice"),
    "key length": (gguf_bytes([(bytes(600), uint32_value(1))]), "is 600 bytes long, the limit is 512"),
    "key not UTF-8": (gguf_bytes([(b"\xff", uint32_value(1))]), "metadata key 0 of 1 is not UTF-8"),
    "value type": (keyed("a", struct.pack("<I", 13)), "key 'a' has the unknown value type 13"),
    "string length": (keyed("a", string_value("x", 1 << 40)), f"key 'a' at byte 45 needs {1 << 40} bytes"),
    "string not UTF-8": (keyed("a", string_value(b"\xff\xfe")), "key 'a' is not UTF-8: invalid start byte at byte 45"),
    "surrogate": (keyed("a", string_value(b"\xed\xa0\x80")), "key 'a' is not UTF-8"),
    "array count": (keyed("a", array_value(UINT32, [], 1 << 60)), f"key 'a' claims {1 << 60} items"),
    "array beyond file": (keyed("a", array_value(UINT64, [], 1 << 20)), f"needs {8 << 20} bytes"),
    "array item type": (keyed("a", array_value(99, [])), "an array of the unknown value type 99"),
    "array text not UTF-8": (keyed("a", array_value(STRING, [text(b"\x80")])), "holds text that is not UTF-8"),
    "array string length": (keyed("a", array_value(STRING, [text("x", 1 << 63)] * 2)), "string 1 of 2 of metadata key"),
    "array last string length": (keyed("a", array_value(STRING, [text("x", 1 << 63)])), "the last of 1 strings"),
    "alignment": (keyed("general.alignment", uint32_value(24)), "must be a power of two from 8 to 65536, but it is 24"),
    "alignment 0": (keyed("general.alignment", uint32_value(0)), "but it is 0"),
    "alignment text": (keyed("general.alignment", string_value("32")), "but it is a str"),
    "tensor twice": (
        gguf_bytes(tensors=[RawTensor(), RawTensor(offset=256)], data=bytes(512)),
        "'weight' appears twice",
    ),
    "tensor name length": (gguf_bytes(tensors=[RawTensor("x" * 257)]), "is 257 bytes long, the limit is 256"),
    "tensor name not UTF-8": (gguf_bytes(tensors=[RawTensor(b"\xff")]), "tensor 0 of 1 is not UTF-8"),
    "dimensions": (gguf_bytes(tensors=[RawTensor(num_dims=5)]), "'weight' claims 5 dimensions, the limit is 4"),
    "dimension 0": (gguf_bytes(tensors=[RawTensor(dims=(32, 0))]), r"impossible dimensions \[32, 0\]"),
    "overflow": (gguf_bytes(tensors=[RawTensor(dims=(1 << 33, 1 << 33))]), "impossible dimensions"),
    "overflow to 0": (gguf_bytes(tensors=[RawTensor(dims=(1 << 32, 1 << 32, 1, 1))]), "impossible dimensions"),
    "broken block": (
        gguf_bytes(tensors=[RawTensor(dims=(48, 2), type=8)]),
        "rows of 48 elements, not a multiple of the 32 of a Q8_0 block",
    ),
    "misaligned": (gguf_bytes(tensors=[RawTensor(offset=8)]), "offset 8, which is not a multiple of the alignment 32"),
    "offset beyond": (gguf_bytes(tensors=[RawTensor(offset=1 << 63)]), "tensor 'weight' occupies bytes"),
    "size beyond": (gguf_bytes(data=bytes(255)), "tensor 'weight' occupies bytes 128 to 384, but the file ends at 383"),
    "overlap": (
        gguf_bytes(tensors=[RawTensor("a"), RawTensor("b", offset=224)], data=bytes(512)),
        "tensors 'a' and 'b' overlap: one ends at byte",
    ),
    "same place": (gguf_bytes(tensors=[RawTensor("a"), RawTensor("b")]), "tensors 'a' and 'b' overlap"),
    "split count": (keyed("split.count", uint32_value(1 << 30)), "split.count must be a whole number up to 1024"),
    "split name": (keyed("split.count", uint32_value(3)), "must end in -00001-of-00003.gguf"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_in_one_sentence_that_names_file_and_numbers(lie: str, tmp_path: Path) -> None:
    data, words = LIES[lie]
    path = write(tmp_path / "model.gguf", data)
    with pytest.raises(ModelFileError, match=words) as caught:
        use_everything(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 200


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gguf_bytes(version=1), "is GGUF version 1; versions 2 and 3 are read"),
        (gguf_bytes(version=4), "is GGUF version 4"),
        (gguf_bytes(version=3 << 24), "is a big-endian GGUF file"),
        (gguf_bytes(tensors=[RawTensor(type=23)]), "tensor 'weight' is of type IQ4_XS, which is not one we read"),
        (gguf_bytes(tensors=[RawTensor(type=4)]), "tensor 'weight' is of the unknown type 4"),
        (gguf_bytes(tensors=[RawTensor(type=(1 << 32) - 1)]), "of the unknown type 4294967295"),
    ],
)
def test_what_is_sound_but_not_ours_is_called_unsupported(data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        GGUFFile.open(write(tmp_path / "model.gguf", data))


def test_arrays_nested_too_deep_are_refused(tmp_path: Path) -> None:
    body = array_body(UINT32, [struct.pack("<I", 1)])
    for _ in range(2000):
        body = array_body(ARRAY, [body])
    path = write(tmp_path / "deep.gguf", keyed("deep", struct.pack("<I", ARRAY) + body))
    with pytest.raises(ModelFileError, match="'deep' nests arrays deeper than 4 levels"):
        GGUFFile.open(path)


def test_no_damage_to_a_file_does_more_than_be_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    original = rich_gguf_bytes()
    use_everything(write(path, original))
    opened = refused = 0
    for data in mutations(original, count=4000, seed=1):
        path.write_bytes(data)
        try:
            use_everything(path)
            opened += 1
        except TriviumError as error:
            assert "\n" not in str(error)
            refused += 1
    assert opened > 100, "the mutations are so coarse that nothing opens"
    assert refused > 2000, "the mutations are so mild that nothing is refused"


@pytest.mark.parametrize(
    "data",
    [
        keyed("a", array_value(STRING, [bytes(8)] * (MAX_ARRAY_ITEMS + 1))),
        gguf_bytes([(f"a{i}", array_value(STRING, [bytes(8)] * (MAX_ARRAY_ITEMS - 1))) for i in range(3)]),
        keyed("a", array_value(ARRAY, [array_body(UINT32, [])] * (MAX_ARRAY_ITEMS + 1))),
        gguf_bytes([(f"{i:04}", uint32_value(i)) for i in range(1 << 15)]),
        gguf_bytes(tensors=[RawTensor(f"{i}", (8,), 0, 32 * i) for i in range(MAX_TENSORS + 1)], data=b""),
    ],
    ids=["strings", "strings in all", "arrays", "keys", "tensors"],
)
def test_a_file_of_a_million_things_is_refused_before_it_costs_memory(data: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=r"limit|more than"):
            GGUFFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_the_most_tensors_and_keys_we_let_through_stay_within_the_memory_bound(tmp_path: Path) -> None:
    keys = [(f"{i:05}", uint32_value(i)) for i in range(1 << 14)]
    tensors = [RawTensor(f"{i:05}", (8, 1, 1, 1), 0, 32 * i) for i in range(MAX_TENSORS)]
    path = write(tmp_path / "model.gguf", gguf_bytes(keys, tensors, bytes(32 * MAX_TENSORS)))
    tracemalloc.start()
    try:
        GGUFFile.open(path).close()
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size + (64 << 20)
    finally:
        tracemalloc.stop()


def test_a_long_string_is_not_decoded_before_it_is_asked_for_and_not_beyond_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", keyed("long", string_value(bytes(17 << 20))))
    tracemalloc.start()
    try:
        with GGUFFile.open(path) as file:
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
            with pytest.raises(ModelFileError, match="the limit is 16777216"):
                file.metadata["long"]
    finally:
        tracemalloc.stop()


def test_a_directory_a_pipe_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "directory.gguf").mkdir()
    for name, words in {
        "pipe.gguf": "is not a regular file",
        "directory.gguf": "is not a regular file",
        "missing.gguf": "there is no such file",
        "nul\0.gguf": "cannot be opened",
    }.items():
        with pytest.raises(ModelFileError, match=words):
            GGUFFile.open(tmp_path / name)
