"""Models from a hub, by the real `huggingface_hub` over HTTP to a hub on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_hub import LocalHub, serve_hub
from tiny_models import DIRECTORY_FILES, make_directory, make_gguf

from trivium.store import ModelStore
from trivium.store.hub import RemoteFile, choose_files
from trivium.types.errors import ModelFileError

pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def running_hub() -> Iterator[LocalHub]:
    with serve_hub() as hub:
        yield hub


@pytest.fixture
def hub(running_hub: LocalHub) -> LocalHub:
    running_hub.repos.clear()
    running_hub.promised_sha256.clear()
    running_hub.downloads.clear()
    return running_hub


@pytest.fixture
def store(tmp_path: Path, hub: LocalHub) -> ModelStore:
    return ModelStore(tmp_path / "store", hub_endpoint=hub.endpoint)


def directory_contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_repository_of_safetensors_is_pulled_without_code_or_pickles(
    store: ModelStore, hub: LocalHub, tmp_path: Path
) -> None:
    hub.repos["org/tiny"] = directory_contents(make_directory(tmp_path / "origin"))
    stored = store.pull("org/tiny")
    assert stored.name == "org/tiny"
    assert stored.manifest.source == "hub:org/tiny"
    assert {path.name for path in stored.path.iterdir()} == DIRECTORY_FILES
    assert set(hub.downloads) == DIRECTORY_FILES
    assert store.show("org/tiny").parameters == 20
    store.verify("org/tiny")

    hub.repos.clear()
    assert store.pull("hub:org/tiny").path == stored.path


@pytest.mark.parametrize("pick", ["Q4_K_M", "q4_k_m", "tiny-Q4_K_M.gguf"])
def test_one_gguf_file_is_picked_by_quantization_or_name(
    store: ModelStore, hub: LocalHub, tmp_path: Path, pick: str
) -> None:
    model = make_gguf(tmp_path / "tiny.gguf").read_bytes()
    hub.repos["org/tiny-GGUF"] = {f"tiny-{tag}.gguf": model for tag in ("Q4_K_S", "Q4_K_M", "Q8_0")}
    stored = store.pull(f"org/tiny-GGUF:{pick}")
    assert stored.name == f"org/tiny-GGUF:{pick}"
    assert stored.path.name == "tiny-Q4_K_M.gguf"
    assert hub.downloads == ["tiny-Q4_K_M.gguf"]
    assert store.resolve(f"org/tiny-GGUF:{pick}") == stored.path


def test_a_split_gguf_in_a_folder_is_pulled_whole(store: ModelStore, hub: LocalHub, tmp_path: Path) -> None:
    make_gguf(tmp_path / "big-Q8_0.gguf", split_max_tensors=1)
    parts = {f"Q8_0/{path.name}": path.read_bytes() for path in tmp_path.glob("big-*.gguf")}
    hub.repos["org/big"] = {"big-Q4_0.gguf": b"", **parts}
    stored = store.pull("org/big:Q8_0")
    assert len(stored.manifest.files) == 2
    store.verify("org/big:Q8_0")


def test_a_file_that_is_not_what_the_hub_promised_is_refused(store: ModelStore, hub: LocalHub, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = {"tiny.gguf": make_gguf(tmp_path / "tiny.gguf").read_bytes()}
    hub.promised_sha256["tiny.gguf"] = "0" * 64
    with pytest.raises(ModelFileError, match=r"hub:org/tiny: tiny\.gguf has the sha256 [0-9a-f]{64}, not 0{64}"):
        store.pull("org/tiny")
    assert store.list() == []
    assert list((store.root / "staging").iterdir()) == []


def test_a_missing_repository_and_an_absent_hub_are_sentences(store: ModelStore, tmp_path: Path) -> None:
    nobody = ModelStore(tmp_path / "store", hub_endpoint="http://127.0.0.1:9")
    for asked in (store, nobody):
        with pytest.raises(ModelFileError, match="hub:org/absent: the hub did not give it: ") as caught:
            asked.pull("org/absent")
        assert "\n" not in str(caught.value)
        assert asked.list() == []


def test_without_the_library_the_sentence_says_how_to_get_it(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelFileError, match=r"needs the package huggingface_hub; `pip install trivium\[hub\]`"):
        store.pull("hub:org/tiny")


@pytest.mark.parametrize("reference", ["hub:", "hub:name", "hub:a/b/c", "hub:../x", "hub:a/b:../x", "a/b:c d", "a/b?c"])
def test_what_cannot_name_a_repository_is_refused(store: ModelStore, reference: str) -> None:
    with pytest.raises(ModelFileError):
        store.pull(reference)
    assert store.list() == []


def remote(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 1, None) for path in paths]


@pytest.mark.parametrize(
    ("paths", "pick", "words"),
    [
        (
            ["a-Q4_0.gguf", "a-Q8_0.gguf"],
            None,
            r"holds 2 GGUF models, pick one: org/a:a-Q4_0\.gguf, org/a:a-Q8_0\.gguf",
        ),
        (["a-Q4_0.gguf"], "Q8_0", r"no GGUF file there is Q8_0; there are org/a:a-Q4_0\.gguf"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "2 GGUF files there are Q8_0, pick one"),
        (["config.json", "model.safetensors"], "Q8_0", "holds no GGUF files"),
        (["config.json", "pytorch_model.bin"], None, "holds only pickled weights"),
        (["README.md"], None, "holds no model"),
        (["../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "a\\evil.gguf"], None, "holds no model"),
        ([f"a-{i}.gguf" for i in range(20)], None, "and 12 more"),
    ],
)
def test_a_repository_from_which_no_model_can_be_told_says_what_there_is(
    paths: list[str], pick: str | None, words: str
) -> None:
    with pytest.raises(ModelFileError, match=words):
        choose_files("org/a" if pick is None else f"org/a:{pick}", remote(*paths), pick)


def test_a_projector_beside_the_model_is_not_taken_for_it() -> None:
    chosen = choose_files("org/a", remote("mmproj-a-f16.gguf", "a-Q8_0.gguf"), None)
    assert [file.path for file in chosen] == ["a-Q8_0.gguf"]


def test_descriptions_of_an_encoders_modules_come_with_it() -> None:
    paths = (
        "config.json",
        "model.safetensors",
        "modules.json",
        "1_Pooling/config.json",
        "onnx/model.onnx",
        "a/b/config.json",
    )
    assert [file.path for file in choose_files("org/a", remote(*paths), None)] == [
        "config.json",
        "1_Pooling/config.json",
        "model.safetensors",
        "modules.json",
    ]
    without = [path for path in paths if path != "modules.json"]
    assert "1_Pooling/config.json" not in [file.path for file in choose_files("org/a", remote(*without), None)]
