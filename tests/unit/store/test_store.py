"""The life of a stored model: pulled, listed, shown, resolved, verified, removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tiny_models import DIRECTORY_FILES, make_directory, make_gguf, sha256

from trivium.formats.gguf import GGUFFile
from trivium.formats.home import default_root
from trivium.formats.packed_file import PackedForm, identify, packed_path, place_weights, write_packed
from trivium.formats.source import open_source
from trivium.store import DEFAULT_MODEL, ModelStore
from trivium.store.progress import PullProgress, PullStage
from trivium.types.errors import ModelFileError


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def names(store: ModelStore) -> list[str]:
    return [stored.name for stored in store.list()]


def test_a_gguf_file_is_referred_to_where_it_is(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "My Model.gguf")
    stored = store.pull(str(model))
    assert stored.name == "My-Model"
    assert stored.path == model
    assert not stored.manifest.owned
    assert stored.manifest.format == "gguf"
    assert stored.manifest.size == model.stat().st_size
    assert [(file.path, file.sha256) for file in stored.manifest.files] == [(model.name, sha256(model.read_bytes()))]
    assert store.resolve("My-Model") == model
    assert names(store) == ["My-Model"]


def test_a_copied_gguf_file_outlives_the_original(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    content = model.read_bytes()
    stored = store.pull(str(model), copy=True)
    model.unlink()
    assert stored.manifest.owned
    assert stored.path.is_relative_to(store.root)
    assert store.resolve("tiny").read_bytes() == content
    store.verify("tiny")


def test_all_parts_of_a_split_gguf_are_copied(store: ModelStore, tmp_path: Path) -> None:
    make_gguf(tmp_path / "big.gguf", split_max_tensors=1)
    stored = store.pull(str(tmp_path / "big-00001-of-00002.gguf"), copy=True)
    assert stored.name == "big"
    assert len(stored.manifest.files) == 2
    with GGUFFile.open(store.resolve("big")) as file:
        assert len(file.tensors) == 2


def test_a_directory_is_referred_to_and_only_its_model_files_are_recorded(store: ModelStore, tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "tiny-llama")
    stored = store.pull(str(directory))
    assert stored.path == directory
    assert stored.manifest.format == "huggingface"
    assert {file.path for file in stored.manifest.files} == DIRECTORY_FILES


def test_a_copied_directory_holds_no_code_and_no_pickles(store: ModelStore, tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "tiny-llama")
    stored = store.pull(str(directory), copy=True, name="org/tiny:v1")
    shutil.rmtree(directory)
    assert {path.name for path in stored.path.iterdir()} == DIRECTORY_FILES
    with open_source(store.resolve("org/tiny:v1")) as source:
        assert source.path == stored.path
    assert store.show("org/tiny:v1").parameters == 20


def test_relative_paths_are_remembered_whole(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_gguf(tmp_path / "tiny.gguf")
    monkeypatch.chdir(tmp_path)
    store.pull("tiny.gguf")
    monkeypatch.chdir("/")
    assert store.resolve("tiny") == tmp_path / "tiny.gguf"


def test_resolve_takes_paths_as_they_are(store: ModelStore, tmp_path: Path) -> None:
    model, directory = make_gguf(tmp_path / "tiny.gguf"), make_directory(tmp_path / "dir")
    assert store.resolve(str(model)) == model
    assert store.resolve(str(directory)) == directory
    assert not store.root.exists()


def test_a_bare_word_means_the_stored_model_even_beside_a_folder_of_that_name(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    store.pull(str(model))
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert store.resolve("tiny") == model


def test_what_is_nowhere_is_told_with_what_is_stored_and_how_to_pull(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no such model.*nothing is stored yet.*trivium pull.*smollm2"):
        store.resolve("absent")
    store.pull(str(make_gguf(tmp_path / "tiny.gguf")))
    for reference in ("absent", "../tiny", "/absent.gguf", "", "a" * 5000, "nul\0"):
        with pytest.raises(ModelFileError, match="stored are tiny"):
            store.resolve(reference)


@pytest.mark.parametrize("operation", ["get", "show", "verify", "rm"])
@pytest.mark.parametrize("name", ["absent", "../../etc", "/etc", ".", "", "a/b/c"])
def test_no_name_reaches_outside_the_store(store: ModelStore, operation: str, name: str) -> None:
    with pytest.raises(ModelFileError):
        getattr(store, operation)(name)


def test_show_tells_a_gguf_model(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    store.pull(str(model))
    shown = store.show("tiny")
    assert (shown.name, shown.source, shown.path) == ("tiny", str(model), model)
    assert (shown.format, shown.architecture, shown.parameters) == ("gguf", "llama", 192)
    assert (shown.quantization, shown.context_length, shown.embedding_length) == ("F32", 2048, 8)
    assert shown.has_chat_template
    assert shown.size == model.stat().st_size
    assert shown.created is not None


def test_show_tells_a_directory_by_path(store: ModelStore, tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "dir")
    shown = store.show(str(directory))
    assert (shown.name, shown.format, shown.architecture) == (None, "huggingface", "LlamaForCausalLM")
    assert (shown.parameters, shown.quantization, shown.context_length) == (20, "F16", 4096)
    assert shown.has_chat_template
    assert shown.size == sum((directory / name).stat().st_size for name in DIRECTORY_FILES)


def test_rm_of_a_reference_leaves_the_files(store: ModelStore, tmp_path: Path) -> None:
    model, directory = make_gguf(tmp_path / "tiny.gguf"), make_directory(tmp_path / "dir")
    store.pull(str(model))
    store.pull(str(directory))
    store.rm("tiny")
    store.rm("dir")
    assert names(store) == []
    assert model.exists()
    assert (directory / "config.json").exists()


def test_rm_of_a_copy_deletes_it_and_nothing_else(store: ModelStore, tmp_path: Path) -> None:
    for name in ("one", "two"):
        store.pull(str(make_gguf(tmp_path / f"{name}.gguf")), copy=True)
    path = store.resolve("one")
    store.rm("one")
    assert not path.exists()
    assert names(store) == ["two"]
    store.verify("two")
    assert list((store.root / "staging").iterdir()) == []


def test_a_model_and_one_in_an_organisation_of_that_name_do_not_meet(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    for name in ("a", "a/b", "a/b:c", "a:c"):
        store.pull(str(model), name=name, copy=True)
    store.rm("a")
    assert sorted(names(store)) == ["a/b", "a/b:c", "a:c"]
    for name in names(store):
        store.verify(name)


def test_pulling_again_takes_in_what_changed(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "tiny.gguf", fill=1.0)
    store.pull(str(model), copy=True)
    make_gguf(model, fill=2.0)
    store.pull(str(model), copy=True)
    assert store.resolve("tiny").read_bytes() == model.read_bytes()
    store.verify("tiny")
    assert list((store.root / "staging").iterdir()) == []


def test_a_name_is_not_taken_over_by_another_source(store: ModelStore, tmp_path: Path) -> None:
    store.pull(str(make_gguf(tmp_path / "one.gguf")), name="tiny")
    with pytest.raises(ModelFileError, match=r"tiny is stored already, from .*one\.gguf"):
        store.pull(str(make_gguf(tmp_path / "two.gguf")), name="tiny")
    assert store.resolve("tiny") == tmp_path / "one.gguf"


def test_the_name_of_a_packaged_model_is_reserved(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="smollm2 is the name of a packaged model"):
        store.pull(str(make_gguf(tmp_path / f"{DEFAULT_MODEL}.gguf")))


def test_verify_finds_one_changed_byte(store: ModelStore, tmp_path: Path) -> None:
    store.pull(str(make_gguf(tmp_path / "tiny.gguf")), copy=True)
    path = store.resolve("tiny")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"tiny: tiny\.gguf has the sha256 [0-9a-f]{64}, not [0-9a-f]{64}"):
        store.verify("tiny")


def test_a_missing_or_shortened_file_is_told_when_the_model_is_used(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    store.pull(str(model))
    os.truncate(model, 100)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf is 100 bytes long, not \d+; pull it again"):
        store.resolve("tiny")
    model.unlink()
    with pytest.raises(ModelFileError, match=r"tiny\.gguf is missing; pull it again from .*or remove it"):
        store.resolve("tiny")


def test_a_damaged_model_is_not_stored(store: ModelStore, tmp_path: Path) -> None:
    model = make_gguf(tmp_path / "tiny.gguf")
    os.truncate(model, model.stat().st_size - 1)
    for copy in (False, True):
        with pytest.raises(ModelFileError, match=r"tensor 'output\.weight' occupies bytes"):
            store.pull(str(model), copy=copy)
    assert names(store) == []
    assert list((store.root / "staging").iterdir()) == []


def test_a_damaged_manifest_is_left_out_and_can_be_removed(
    store: ModelStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("good", "bad", "escaping"):
        store.pull(str(make_gguf(tmp_path / f"{name}.gguf")), copy=True)
    (store.root / "models/bad/manifest.json").write_text("{")
    manifest = store.root / "models/escaping/manifest.json"
    manifest.write_text(manifest.read_text().replace("files/escaping.gguf", "../good/files/good.gguf"))
    assert names(store) == ["good"]
    assert "bad/manifest.json: is damaged" in caplog.text
    with pytest.raises(ModelFileError, match="leaves the store"):
        store.resolve("escaping")
    store.rm("bad")
    store.rm("escaping")
    store.verify("good")


def test_progress_counts_up_to_the_whole(store: ModelStore, tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "dir")
    events: list[PullProgress] = []
    stored = store.pull(str(directory), copy=True, progress=events.append)
    for stage in (PullStage.COPYING, PullStage.CHECKING):
        counts = [event.done for event in events if event.stage == stage]
        assert counts == sorted(counts)
        assert counts[-1] == stored.manifest.size
        assert {event.total for event in events if event.stage == stage} == {stored.manifest.size}


@pytest.mark.parametrize("reference", ["absent", "./absent", "/absent/model.gguf", "absent.gguf", "~/absent"])
def test_pulling_what_is_nowhere_says_so(store: ModelStore, reference: str) -> None:
    with pytest.raises(ModelFileError, match=r"no such model directory or \.gguf file"):
        store.pull(reference)


def test_a_root_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ModelStore(tmp_path / "file" / "store")
    with pytest.raises(ModelFileError, match="tiny: Not a directory"):
        store.pull(str(make_gguf(tmp_path / "tiny.gguf")))
    assert store.list() == []


def pack(store: ModelStore, model: Path, form: PackedForm) -> Path:
    """What an engine leaves of a model."""
    path = packed_path(store.root / "packed", model, form)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_source(model) as source:
        write_packed(path, place_weights(1, identify(source), []), [])
    return path


def test_packed_weights_are_shown_and_go_with_their_model(store: ModelStore, tmp_path: Path) -> None:
    kept, gone = make_gguf(tmp_path / "kept.gguf"), make_gguf(tmp_path / "gone.gguf")
    for model in (kept, gone):
        store.pull(str(model))
    assert store.show("gone").packed == ()
    packed_kept, packed_gone = pack(store, kept, "rows"), (pack(store, gone, "blocks"), pack(store, gone, "rows"))
    assert store.show("gone").packed == packed_gone
    assert store.show(str(kept)).packed == (packed_kept,)
    store.rm("gone")
    assert store.show(str(gone)).packed == () and packed_kept.exists()
    assert gone.exists()


def test_the_root_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path / "home"))
    assert default_root() == tmp_path / "home"
    monkeypatch.delenv("TRIVIUM_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_root() == tmp_path / "cache" / "trivium"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ModelStore().root == tmp_path / ".cache" / "trivium"
