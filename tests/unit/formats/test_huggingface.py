"""A model directory tells what it is, or what is missing from it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from raw_files import gguf_bytes, write
from safetensors.numpy import save_file

from trivium.formats.gguf import GGUFFile
from trivium.formats.huggingface import HFDirectory
from trivium.formats.source import open_source
from trivium.types.errors import ModelFileError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    save_file({"w": np.ones(3, dtype=np.float32)}, path / "model.safetensors")
    return path


def test_a_directory_gives_config_generation_config_and_weights(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (directory / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    with HFDirectory.open(directory) as model:
        assert model.path == directory
        assert model.config["hidden_size"] == 8
        assert model.generation_config == {"eos_token_id": [1, 2]}
        assert model.read_json("tokenizer_config.json") == {"bos_token": "<s>"}
        assert model.read_json("absent.json") == {}
        assert list(model.weights.tensors) == ["w"]


def test_weights_are_not_needed_until_they_are_asked_for(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    model = HFDirectory.open(directory)
    assert model.generation_config == {}
    with pytest.raises(ModelFileError, match="holds no weights"):
        _ = model.weights


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth"])
def test_pickled_weights_are_refused_with_the_reason(directory: Path, name: str) -> None:
    (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ModelFileError, match=f"holds only pickled weights .{name}.; only safetensors are read"):
        _ = HFDirectory.open(directory).weights


def test_pickled_weights_beside_safetensors_do_not_matter(directory: Path) -> None:
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert list(HFDirectory.open(directory).weights.tensors) == ["w"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"", "is empty"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe{}", "is not valid JSON"),
        (b"[1]", "must hold a JSON object, but it holds a list"),
        (b"null", "must hold a JSON object"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "is not valid JSON"),
        (b" " * (3 << 20), "the limit is 2097152"),
    ],
)
def test_a_bad_config_is_refused_in_one_sentence(directory: Path, config: bytes, words: str) -> None:
    for name in ("config.json", "generation_config.json"):
        (directory / "config.json").write_text("{}")
        (directory / name).write_bytes(config)
        with pytest.raises(ModelFileError, match=words) as caught:
            HFDirectory.open(directory)
        assert str(directory / name) in str(caught.value)


def test_the_infinities_that_python_writes_into_configs_are_read(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({"time_step_limit": [0.0, math.inf]}))
    assert HFDirectory.open(directory).config["time_step_limit"][1] == math.inf


def test_a_directory_without_config_says_so_and_points_to_a_gguf_in_it(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no config\.json$"):
        HFDirectory.open(tmp_path)
    write(tmp_path / "tiny.gguf", gguf_bytes())
    with pytest.raises(ModelFileError, match=r"to run tiny\.gguf in it, name that file"):
        HFDirectory.open(tmp_path)


def test_open_source_tells_directories_from_gguf_files(directory: Path, tmp_path: Path) -> None:
    assert isinstance(open_source(directory), HFDirectory)
    assert isinstance(open_source(write(tmp_path / "m.GGUF", gguf_bytes())), GGUFFile)
    assert isinstance(open_source(str(tmp_path / "m.GGUF")), GGUFFile)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "there is no such file or directory"),
        ("a" * 300, "there is no such file or directory"),
        ("nul\0", "there is no such file or directory"),
        ("notes.txt", "is neither a model directory nor a .gguf file$"),
        ("model/model.safetensors", "name the directory that holds it"),
    ],
)
def test_open_source_refuses_what_is_neither(directory: Path, name: str, words: str) -> None:
    (directory.parent / "notes.txt").write_text("hello")
    with pytest.raises(ModelFileError, match=words):
        open_source(directory.parent / name)
