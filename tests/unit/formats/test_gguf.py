"""What the `gguf` package writes, we read: the same metadata, the same tensors, the same bytes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from raw_files import RawTensor, array_value, gguf_bytes, string_value, text, write

from trivium.formats.gguf import GGUFFile
from trivium.formats.quant_types import QUANT_TYPES
from trivium.types.errors import ModelFileError


def write_gguf(path: Path, tensors: dict[str, tuple[str, np.ndarray]], **options: int) -> Path:
    """`tensors`: name -> (type, array); a quantized one is given as its bytes, [..., bytes per row]."""
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_block_count(3)
    writer.add_tokenizer_model("gpt2")
    for name, (type_name, array) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("type_name", QUANT_TYPES)
def test_our_block_sizes_are_those_of_the_gguf_package(type_name: str) -> None:
    type = QUANT_TYPES[type_name]
    theirs = gguf.GGMLQuantizationType[type_name]
    assert type.gguf_id == theirs.value
    assert (type.block_elements, type.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]


def test_tensors_of_every_type_come_back_with_their_shape_and_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {}
    for type in QUANT_TYPES.values():
        row_bytes = 256 // type.block_elements * type.block_bytes
        array = rng.integers(0, 256, (3, 5, row_bytes), dtype=np.uint8)
        if type.name == "F32":
            array = array.view(np.float32)
        elif type.name == "F16":
            array = array.view(np.float16)
        tensors[f"{type.name}.weight"] = (type.name, array)
    path = write_gguf(tmp_path / "all.gguf", tensors)

    with GGUFFile.open(path) as ours:
        assert list(ours.tensors) == list(tensors)
        for name, (type_name, array) in tensors.items():
            tensor = ours.tensors[name]
            assert (tensor.type, tensor.shape, tensor.nbytes) == (type_name, (3, 5, 256), array.nbytes)
            assert ours.read(name).dtype == np.uint8
            assert ours.read(name).tobytes() == array.tobytes()
        for theirs in gguf.GGUFReader(path).tensors:
            tensor = ours.tensors[theirs.name]
            assert tensor.shape == tuple(int(dim) for dim in reversed(theirs.shape))
            assert tensor.nbytes == theirs.n_bytes


def test_metadata_of_every_kind_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "keys.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "größer 😀")
    writer.add_array("strings", ["a", "", "ĠΩ", "😀"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.0])
    writer.add_array("bools", [True, False])
    writer.add_array("nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with GGUFFile.open(path) as file:
        expected = {
            "general.architecture": "llama",
            "u8": 255,
            "i8": -128,
            "u16": 65535,
            "i16": -32768,
            "u32": 2**32 - 1,
            "i32": -(2**31),
            "u64": 2**64 - 1,
            "i64": -(2**63),
            "f32": 0.5,
            "f64": 0.1,
            "yes": True,
            "no": False,
            "text": "größer 😀",
            "strings": ["a", "", "ĠΩ", "😀"],
            "ints": [1, -2, 3],
            "floats": [0.5, -1.0],
            "bools": [True, False],
            "nested": [[1, 2], [3]],
        }
        assert {key: file.metadata[key] for key in expected} == expected
        assert type(file.metadata["yes"]) is bool
        assert type(file.metadata["u8"]) is int
        assert type(file.metadata["bools"][0]) is bool


def test_another_alignment_is_obeyed(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    first, second = np.arange(3, dtype=np.float32), np.arange(5, dtype=np.float32)
    writer.add_tensor("first", first)
    writer.add_tensor("second", second)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(path) as file:
        assert file.read("first").view(np.float32).tolist() == first.tolist()
        assert file.read("second").view(np.float32).tolist() == second.tolist()


def test_version_2_is_read(tmp_path: Path) -> None:
    with GGUFFile.open(write(tmp_path / "v2.gguf", gguf_bytes(version=2))) as file:
        assert file.architecture == "llama"
        assert file.read("weight").tobytes() == bytes(range(256))


def test_a_split_model_is_opened_whole_by_its_first_part(tmp_path: Path) -> None:
    arrays = {f"blk.{i}.weight": np.full((2, 32), i, dtype=np.float32) for i in range(5)}
    write_gguf(tmp_path / "m.gguf", {name: ("F32", array) for name, array in arrays.items()}, split_max_tensors=2)
    with GGUFFile.open(tmp_path / "m-00001-of-00003.gguf") as file:
        assert len(file.paths) == 3
        assert file.tensors.keys() == arrays.keys()
        for name, array in arrays.items():
            assert file.read(name).tobytes() == array.tobytes()


def test_a_split_model_with_a_part_missing_names_it(tmp_path: Path) -> None:
    arrays = {f"blk.{i}.weight": ("F32", np.zeros((1, 32), dtype=np.float32)) for i in range(4)}
    write_gguf(tmp_path / "m.gguf", arrays, split_max_tensors=2)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf: there is no such file"):
        GGUFFile.open(tmp_path / "m-00001-of-00002.gguf")


def test_a_later_part_of_a_split_model_asks_for_the_first(tmp_path: Path) -> None:
    arrays = {f"blk.{i}.weight": ("F32", np.zeros((1, 32), dtype=np.float32)) for i in range(4)}
    write_gguf(tmp_path / "m.gguf", arrays, split_max_tensors=2)
    with pytest.raises(ModelFileError, match="name its first part"):
        GGUFFile.open(tmp_path / "m-00002-of-00002.gguf")


def test_a_tensor_is_a_view_that_outlives_the_file(tmp_path: Path) -> None:
    file = GGUFFile.open(write(tmp_path / "m.gguf", gguf_bytes()))
    view = file.read("weight")
    assert view.base is not None
    assert not view.flags.writeable
    file.close()
    assert view.tobytes() == bytes(range(256))


def test_typed_getters_tell_missing_from_wrong(tmp_path: Path) -> None:
    keys = [
        ("name", string_value("x")),
        ("words", array_value(8, [text("a"), text("b")])),
        ("count", b"\x04\0\0\0\x05\0\0\0"),
        ("flag", b"\x07\0\0\0\x01"),
    ]
    with GGUFFile.open(write(tmp_path / "m.gguf", gguf_bytes(keys))) as file:
        assert file.get_int("count") == 5
        assert file.get_float("count") == 5.0
        assert file.get_str("name") == "x"
        assert file.get_bool("flag") is True
        assert file.get_list("words", str) == ["a", "b"]
        assert file.get_int("absent", 3) == 3
        assert file.get_str("absent", None) is None
        with pytest.raises(ModelFileError, match="has no metadata key 'absent'"):
            file.get_int("absent")
        with pytest.raises(ModelFileError, match="'flag' must be an integer, but it is True"):
            file.get_int("flag")
        with pytest.raises(ModelFileError, match="'words' must be a string, but it is a list of 2 items"):
            file.get_str("words")
        with pytest.raises(ModelFileError, match="'words' must be a list of int"):
            file.get_list("words", int)
        with pytest.raises(ModelFileError, match="has no tensor 'absent'"):
            file.read("absent")


def test_a_scalar_and_a_four_dimensional_tensor_are_read(tmp_path: Path) -> None:
    tensors = [RawTensor("scalar", (), 0, 0), RawTensor("four", (2, 3, 4, 1), 1, 32)]
    with GGUFFile.open(write(tmp_path / "m.gguf", gguf_bytes(tensors=tensors))) as file:
        assert file.tensors["scalar"].shape == ()
        assert file.tensors["scalar"].nbytes == 4
        assert file.tensors["four"].shape == (1, 4, 3, 2)
        assert file.tensors["four"].nbytes == 48
