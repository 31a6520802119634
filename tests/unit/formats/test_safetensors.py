"""What the `safetensors` package writes, we read, sharded or not; what lies is refused in one sentence."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from raw_files import mutations, rich_safetensors_bytes, safetensors_bytes, write
from safetensors.numpy import save_file

from trivium.formats.safetensors import INDEX_FILE, SINGLE_FILE, SafetensorsFiles
from trivium.types.errors import ModelFileError, TriviumError, UnsupportedModelError


def use_everything(path: Path) -> None:
    with SafetensorsFiles.open(path) as files:
        for name, tensor in files.tensors.items():
            data = files.read(name)
            assert data.nbytes == tensor.nbytes
            data.sum()


def write_index(directory: Path, weight_map: object) -> None:
    (directory / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# --- valid files ---


def test_every_dtype_comes_back_with_shape_and_bytes(tmp_path: Path) -> None:
    dtypes = {"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "F16": "f2"}
    dtypes |= {"U32": "u4", "I32": "i4", "F32": "f4", "U64": "u8", "I64": "i8", "F64": "f8"}
    arrays = {name: np.arange(12).reshape(3, 4).astype(dtype) for name, dtype in dtypes.items()}
    arrays["scalar"] = np.array(5.0, dtype=np.float32)
    arrays["empty"] = np.zeros((0, 7), dtype=np.float32)
    save_file(arrays, tmp_path / SINGLE_FILE, metadata={"format": "pt"})
    with SafetensorsFiles.open(tmp_path) as files:
        assert files.tensors.keys() == arrays.keys()
        for name, array in arrays.items():
            tensor = files.tensors[name]
            assert (tensor.shape, tensor.nbytes) == (array.shape, array.nbytes)
            assert files.read(name).tobytes() == array.tobytes()
        assert {files.tensors[name].dtype for name in dtypes} == dtypes.keys()
        assert files.tensors["scalar"].dtype == "F32"


def test_bf16_is_read_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", safetensors_bytes({"w": entry("BF16", [2, 2])}, bytes(range(8))))
    with SafetensorsFiles.open(path) as files:
        assert files.tensors["w"].dtype == "BF16"
        assert files.read("w").tobytes() == bytes(range(8))


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    arrays = {f"layer.{i}": np.full((i + 1, 3), i, dtype=np.float32) for i in range(5)}
    weight_map = {}
    for shard in range(2):
        held = {name: array for i, (name, array) in enumerate(arrays.items()) if i % 2 == shard}
        file = f"model-{shard + 1:05}-of-00002.safetensors"
        save_file(held, tmp_path / file)
        weight_map |= dict.fromkeys(held, file)
    write_index(tmp_path, weight_map)
    with SafetensorsFiles.open(tmp_path) as files:
        assert len(files.paths) == 2
        assert files.tensors.keys() == arrays.keys()
        for name, array in arrays.items():
            assert files.read(name).tobytes() == array.tobytes()


def test_shards_may_be_links_as_in_the_hub_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "blobs" / "abc")
    (tmp_path / "snapshot" / "a.safetensors").symlink_to("../blobs/abc")
    write_index(tmp_path / "snapshot", {"w": "a.safetensors"})
    with SafetensorsFiles.open(tmp_path / "snapshot") as files:
        assert files.read("w").view(np.float32).tolist() == [1, 1, 1]


def test_a_lone_file_of_another_name_is_found_and_two_are_not_guessed(tmp_path: Path) -> None:
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "weights.safetensors")
    with SafetensorsFiles.open(tmp_path) as files:
        assert list(files.tensors) == ["w"]
    save_file({"v": np.ones(3, dtype=np.float32)}, tmp_path / "more.safetensors")
    with pytest.raises(ModelFileError, match=r"holds 2 safetensors files .* but no model\.safetensors\.index\.json"):
        SafetensorsFiles.open(tmp_path)


def test_a_tensor_is_a_view_that_outlives_the_file(tmp_path: Path) -> None:
    files = SafetensorsFiles.open(write(tmp_path / "x.safetensors", rich_safetensors_bytes()))
    view = files.read("a.weight")
    files.close()
    assert view.tobytes() == bytes(range(24))
    assert not view.flags.writeable


# --- lies ---

LIES = {
    "short": (b"\x08\0\0", "is 3 bytes long, too short"),
    "header beyond the file": (safetensors_bytes({}, length=1 << 62), f"claims a header of {1 << 62} bytes"),
    "header by one": (safetensors_bytes({}, length=3), "claims a header of 3 bytes, but only 2 follow"),
    "not JSON": (safetensors_bytes(b"{nonsense"), "is not a safetensors header"),
    "not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "header"),
    "a list": (safetensors_bytes([]), "is not a safetensors header"),
    "deep": (safetensors_bytes(b'{"a":' + b"[" * 100_000), "header"),
    "entry is a number": (safetensors_bytes({"w": 5}), "tensor 'w' is not described as safetensors wants it"),
    "no shape": (safetensors_bytes({"w": {"dtype": "F32", "data_offsets": [0, 0]}}), "missing required field `shape`"),
    "shape of text": (safetensors_bytes({"w": entry(shape=["2"])}), "tensor 'w' is not described"),
    "shape of fractions": (safetensors_bytes({"w": entry(shape=[1.5])}), "tensor 'w' is not described"),
    "three offsets": (safetensors_bytes({"w": entry(offsets=[0, 8, 9])}, bytes(8)), "tensor 'w' is not described"),
    "offsets backwards": (safetensors_bytes({"w": entry(offsets=[8, 0])}, bytes(8)), "claims bytes 8 to 0 of the 8"),
    "offset negative": (safetensors_bytes({"w": entry(offsets=[-8, 0])}, bytes(8)), "claims bytes -8 to 0"),
    "beyond the file": (safetensors_bytes({"w": entry()}, bytes(7)), "claims bytes 0 to 8 of the 7 there are"),
    "size": (safetensors_bytes({"w": entry(shape=[3])}, bytes(8)), r"F32 and shape \[3\] cannot occupy 8 bytes"),
    "negative": (safetensors_bytes({"w": entry(shape=[-1, -2])}, bytes(8)), r"shape \[-1, -2\]"),
    "overflow": (safetensors_bytes({"w": entry(shape=[1 << 62, 4])}, bytes(8)), "cannot occupy 8 bytes"),
    "huge number": (safetensors_bytes(b'{"w":{"dtype":"U8","shape":[' + b"9" * 5000 + b"]}}"), "tensor 'w' is not"),
    "overlap": (
        safetensors_bytes({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
        "tensors 'a' and 'b' overlap: one ends at byte",
    ),
    "same place": (safetensors_bytes({"a": entry(), "b": entry()}, bytes(8)), "tensors 'a' and 'b' overlap"),
    "gap": (
        safetensors_bytes({"a": entry(), "b": entry(offsets=[9, 17])}, bytes(17)),
        "before tensor 'b', belong to no",
    ),
    "gap at the end": (safetensors_bytes({"a": entry()}, bytes(9)), "at its end, belong to no tensor"),
    "name twice": (
        safetensors_bytes(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
            bytes(2),
        ),
        "belong to no tensor",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_in_one_sentence_that_names_file_and_numbers(lie: str, tmp_path: Path) -> None:
    data, words = LIES[lie]
    path = write(tmp_path / "x.safetensors", data)
    with pytest.raises(ModelFileError, match=words) as caught:
        use_everything(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 250


def test_an_unknown_dtype_is_called_unsupported(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", safetensors_bytes({"w": entry("F4")}, bytes(8)))
    with pytest.raises(UnsupportedModelError, match="tensor 'w' has the dtype 'F4'"):
        SafetensorsFiles.open(path)


def test_no_damage_to_a_file_does_more_than_be_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    original = rich_safetensors_bytes()
    use_everything(write(path, original))
    opened = refused = 0
    for data in mutations(original, count=4000, seed=2):
        path.write_bytes(data)
        try:
            use_everything(path)
            opened += 1
        except TriviumError:
            refused += 1
    assert opened > 100, "the mutations are so coarse that nothing opens"
    assert refused > 2000, "the mutations are so mild that nothing is refused"


@pytest.mark.parametrize(
    "header",
    [
        b"{" + b",".join(b'"%06d":1' % i for i in range(1 << 18)) + b"}",
        b"{" + b",".join(b'"%06d":1' % i for i in range(1 << 20)) + b"}",
        b'{"a":{"dtype":"U8","shape":[' + b"999999," * (3 << 20) + b'1],"data_offsets":[0,0]}}',
        b'{"a":' + b"[" * (8 << 20) + b"}",
        b'{"__metadata__":{' + b",".join(b'"%06d":""' % i for i in range(1 << 18)) + b"}}",
    ],
    ids=["numbers for tensors", "too many tensors", "three million dimensions", "eight million brackets", "metadata"],
)
def test_a_header_of_a_million_things_is_refused_before_it_costs_memory(header: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", safetensors_bytes(header))
    del header
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            SafetensorsFiles.open(path)
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size + (64 << 20)
    finally:
        tracemalloc.stop()


# --- the index ---


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"", "is empty"),
        (b"{", "is not a safetensors index"),
        (b"[]", "is not a safetensors index"),
        (b"{}", "missing required field `weight_map`"),
        (b'{"weight_map": {}}', "names no tensors"),
        (b'{"weight_map": {"w": 5}}', "is not a safetensors index"),
        (b'{"weight_map": {"w": "b.safetensors"}}', "names the file 'b.safetensors', which is missing"),
        (b'{"weight_map": {"w": "../a.safetensors"}}', "'../a.safetensors', which is not a safetensors file beside it"),
        (b'{"weight_map": {"w": "/etc/a.safetensors"}}', "not a safetensors file beside it"),
        (b'{"weight_map": {"w": "..\\\\a.safetensors"}}', "not a safetensors file beside it"),
        (b'{"weight_map": {"w": "a\\u0000.safetensors"}}', "not a safetensors file beside it"),
        (b'{"weight_map": {"w": "weights.bin"}}', "not a safetensors file beside it"),
        (b'{"weight_map": {"w": ""}}', "not a safetensors file beside it"),
        (
            b'{"weight_map": {"w": "a.safetensors", "v": "a.safetensors"}}',
            r"a.safetensors: does not hold tensor 'v', .* \(1 of 2 tensors are missing\)",
        ),
    ],
)
def test_an_index_that_lies_is_refused(index: bytes, words: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    for place in (tmp_path, directory):
        save_file({"w": np.ones(3, dtype=np.float32)}, place / "a.safetensors")
    (directory / INDEX_FILE).write_bytes(index)
    with pytest.raises(ModelFileError, match=words):
        SafetensorsFiles.open(directory)


def test_no_damage_to_an_index_does_more_than_be_refused(tmp_path: Path) -> None:
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "a.safetensors")
    save_file({"v": np.ones(2, dtype=np.float32)}, tmp_path / "b.safetensors")
    write_index(tmp_path, {"w": "a.safetensors", "v": "b.safetensors"})
    original = (tmp_path / INDEX_FILE).read_bytes()
    for data in mutations(original, count=1500, seed=3):
        (tmp_path / INDEX_FILE).write_bytes(data)
        with suppress(TriviumError):
            use_everything(tmp_path)
