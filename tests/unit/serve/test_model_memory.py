"""How sizes and times of models are read, and what a model counts for."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivium.config.options import EngineOptions
from trivium.serve.models.keep_alive import read_keep_alive
from trivium.serve.models.offers import offer_that_stays
from trivium.serve.models.sizes import LEAST_KV_BYTES, PROCESS_BYTES, default_budget, kv_bytes_for, read_size
from trivium.types.errors import ConfigError, InvalidRequestError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("90", 90),
        (90, 90),
        (0, 0),
        ("0", 0),
        ("0s", 0),
        (-1, None),
        ("-1", None),
        ("-1m", None),
        (1e300, None),
        ("9999999h", None),
    ],
)
def test_a_keep_alive_is_seconds_or_a_duration_and_below_zero_for_ever(
    value: float | str, seconds: float | None
) -> None:
    assert read_keep_alive(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "5 m", "m5", "5m!", "--5m", "nan", "1d"])
def test_what_is_no_duration_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="keep_alive"):
        read_keep_alive(value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("8G", 8 << 30), ("8GiB", 8 << 30), ("8gb", 8 << 30), ("1.5 M", 3 << 19), ("2t", 2 << 40)],
)
def test_sizes_are_bytes_or_have_a_unit(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "8X", "-1", "8 G 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="size"):
        read_size(text)


def test_a_cache_is_as_large_as_the_weights_within_bounds() -> None:
    assert kv_bytes_for(1 << 20) == LEAST_KV_BYTES
    assert kv_bytes_for(1 << 30) == 1 << 30
    assert kv_bytes_for(1 << 40) == 4 << 30


def test_the_default_budget_is_less_than_what_is_free() -> None:
    free = [
        int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line
    ]
    assert 0 < default_budget() < free[0]


def test_a_model_counts_with_all_its_weights_its_cache_and_its_process(tmp_path: Path) -> None:
    options = EngineOptions(model="m", served_model_name="m", kv_cache_bytes=1000)
    for name, size in (("big-00001-of-00002.gguf", 10), ("big-00002-of-00002.gguf", 20), ("other.gguf", 40)):
        (tmp_path / name).write_bytes(bytes(size))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(5))
    (folder / "config.json").write_bytes(bytes(7))
    for path, size in ((tmp_path / "big-00001-of-00002.gguf", 30), (tmp_path / "other.gguf", 40), (folder, 5)):
        assert offer_that_stays(path, options).need == size + 1000 + PROCESS_BYTES
