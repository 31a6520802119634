"""Pulls that meet, die or run out of disk: what is in the store is always whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import make_gguf, start_pull

from trivium.store import ModelStore
from trivium.store.disk import locked, require_space
from trivium.types.errors import ModelFileError


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def test_processes_that_pull_one_model_at_once_all_get_it_whole(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    children = [start_pull(store.root, model) for _ in range(3)]
    paths = []
    for child in children:
        output, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
        paths.append(output.splitlines()[-1])
    assert paths == [str(store.resolve("tiny"))] * 3
    store.verify("tiny")
    assert len(store.list()) == 1
    assert list((store.root / "staging").iterdir()) == []


def test_a_pull_waits_for_another_of_the_same_model_and_says_so(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    (store.root / "locks").mkdir(parents=True)
    with locked(store.root / "locks" / "tiny.lock", on_wait=lambda: pytest.fail("nobody else holds it")):
        child = start_pull(store.root, model)
        assert child.stdout is not None
        assert child.stdout.readline() == "WAITING\n"
        assert store.list() == []
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert output.splitlines()[-1] == str(store.resolve("tiny"))


def test_a_killed_pull_leaves_nothing_that_looks_whole_and_the_next_sweeps_up(
    store: ModelStore, tmp_path: Path
) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    child = start_pull(store.root, model, stop_at="CHECKING")  # its files are copied, its manifest is not written
    assert child.stdout is not None
    while child.stdout.readline() != "CHECKING\n":
        assert child.poll() is None
    child.kill()
    child.communicate(timeout=60)
    assert len(list((store.root / "staging").iterdir())) == 1
    assert store.list() == []
    with pytest.raises(ModelFileError, match="nothing is stored yet"):
        store.resolve("tiny")

    store.pull(str(model), copy=True)
    store.verify("tiny")
    assert list((store.root / "staging").iterdir()) == []


def test_a_full_disk_is_a_sentence_and_leaves_nothing(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    child = start_pull(store.root, model, file_limit=model.stat().st_size // 2)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert errors.startswith("refused: tiny: the disk is full: ")
    assert len(errors.splitlines()) == 1
    assert store.list() == []
    assert list((store.root / "staging").iterdir()) == []


def test_too_little_space_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(
        ModelFileError, match=r"big needs 1,000,000,000,000,000,000 bytes of disk, but only [\d,]+ are free"
    ):
        require_space(tmp_path, 10**18, "big")
