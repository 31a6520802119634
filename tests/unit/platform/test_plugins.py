"""Plugins: found without being imported, loaded only when chosen, skipped when broken, refused when they patch."""

import sys
from pathlib import Path

import pytest
from plugin_files import install, install_example, write_metadata

import trivium
from trivium.platform.plugins import installed_plugins, load_plugin
from trivium.platform.probe import ask_in_child
from trivium.platform.select import load_platform, platform_names, select_platform
from trivium.platform.version_range import is_within
from trivium.types.errors import ConfigError

GOOD = "class Plugin(Good): pass"


def test_plugins_are_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = install(tmp_path, monkeypatch, "quiet", "raise SystemError('imported')")
    assert "quiet" in installed_plugins()
    assert "quiet" in platform_names()
    assert module not in sys.modules


def test_of_two_plugins_only_the_chosen_one_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = install(tmp_path, monkeypatch, "chosen", GOOD)
    other = install(tmp_path, monkeypatch, "other", GOOD)
    selection = select_platform("chosen")
    assert selection.platform.name == "chosen"
    assert chosen in sys.modules and other not in sys.modules


def test_a_plugin_that_is_here_goes_before_the_core_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "present", GOOD)
    assert select_platform("auto").platform.name == "present"


def test_two_that_are_here_must_be_chosen_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "one", GOOD)
    install(tmp_path, monkeypatch, "two", GOOD)
    with pytest.raises(ConfigError, match="several platforms are here, one, two: choose one with --device"):
        select_platform("auto")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('libvendor.so: cannot open')", "libvendor.so: cannot open"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("import os\nos._exit(3)", "exit code 3 and no answer"),
        ("class Plugin(Good):\n    def detect(self): return 'yes'", "no proper answer"),
        ("class Plugin(Good):\n    def detect(self): raise OSError('no such device')", "no such device"),
        ("class Plugin(Good):\n    contract_version = 9", "speaks contract 9, and 1 and 2 are served"),
        ("class Plugin(Good):\n    name = 'somebody else'", "calls itself 'somebody else'"),
    ],
    ids=["import", "segfault", "exit", "nonsense", "throws", "contract", "name"],
)
def test_a_broken_plugin_is_reported_and_skipped(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "broken", source)
    selection = select_platform("auto")
    assert selection.platform.name in ("cpu", "cuda")
    (broken,) = [one for one in selection.considered if one.name == "broken"]
    assert broken.detection.state == "broken" and said in broken.detection.reason
    with pytest.raises(ConfigError, match="device broken was asked for, but"):
        select_platform("broken")


def test_a_hang_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "hangs", "import time\ntime.sleep(600)")
    asked = ask_in_child("hangs", "detect", seconds=1.0)
    assert asked.answer is None and asked.failure == "gave no answer to 'detect' within 1 s"


def test_a_plugin_that_prints_is_understood_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "loud", "print('vendor banner', flush=True)\n" + GOOD)
    assert ask_in_child("loud", "detect").answer.present


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import trivium.platform.cpu as c\nc.usable_threads = lambda: (64, 'we know better')", "cpu.usable_threads"),
        ("import trivium.types.kv as k\nk.KVSpec.bytes_per_block = property(lambda s: 1)", "KVSpec.bytes_per_block"),
        ("import trivium.types.errors as e\ndel e.StorageError", "errors.StorageError"),
        ("import trivium.platform.cpu as c\nc.DTYPES = ('int4',)", "cpu.DTYPES"),
    ],
    ids=["function", "method", "deletion", "constant"],
)
def test_a_plugin_that_patches_the_core_is_refused_by_the_symbol(
    source: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trivium.types.kv

    originals = [
        (sys.modules["trivium.platform.cpu"], "usable_threads"),
        (sys.modules["trivium.platform.cpu"], "DTYPES"),
        (trivium.types.kv.KVSpec, "bytes_per_block"),
        (sys.modules["trivium.types.errors"], "StorageError"),
    ]
    for owner, attribute in originals:  # so that what the plugin does is undone
        monkeypatch.setattr(owner, attribute, vars(owner)[attribute])
    install(tmp_path, monkeypatch, "patcher", source + "\n" + GOOD)
    with pytest.raises(ConfigError, match=rf"'patcher' changed trivium.*{name}.*plugins register, they do not patch"):
        load_plugin(installed_plugins()["patcher"])


def test_a_plugin_that_patches_a_module_it_is_the_first_to_load_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
    import trivium.of_no_one as fresh
    def theirs(): pass
    fresh.function = theirs
    """
    monkeypatch.setattr(trivium, "__path__", [*trivium.__path__, str(tmp_path)])
    (tmp_path / "of_no_one.py").write_text("def function(): pass\n")
    install(tmp_path, monkeypatch, "early", source + "\n    class Plugin(Good): pass\n")
    with pytest.raises(ConfigError, match=r"changed trivium\.of_no_one\.function"):
        load_plugin(installed_plugins()["early"])
    del sys.modules["trivium.of_no_one"]


def test_a_plugin_of_the_contract_before_is_served_beside_one_of_the_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
    from trivium.platform.contract_v1 import DetectionV1

    class Plugin:
        name = "older"

        def __init__(self): self._cpu = CpuPlatform()
        def detect(self): return DetectionV1(present=True, reason="it is old")
        def capabilities(self): return self._cpu.capabilities()
        def open(self, num_threads): self._cpu.open(num_threads)
        def give_back_unused(self): pass
    """
    install(tmp_path, monkeypatch, "older", source)
    install_example(tmp_path / "example", monkeypatch)
    older, present = select_platform("older"), select_platform("example")
    assert older.considered[-1].detection.reason == "it is old"
    assert older.platform.static().versions.value.contract == 1
    assert older.platform.static().versions.value.plugin == "0.3.0"
    assert older.platform.probe().inventory.value is None
    assert present.platform.static().versions.value.contract == 2


def test_a_plugin_made_for_another_core_is_refused_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
    from trivium.platform.contract import Versions, declared
    from msgspec.structs import replace

    class Plugin(Good):
        def static(self):
            return replace(super().static(), versions=declared(Versions(2, "1", ">=7,<8"), ""))
    """
    install(tmp_path, monkeypatch, "ahead", source)
    write_metadata(tmp_path / "core", "trivium", "0.1.0", {})
    monkeypatch.syspath_prepend(str(tmp_path / "core"))
    with pytest.raises(ConfigError, match=r"made for trivium >=7,<8, and this is 0\.1\.0: install the pair"):
        load_plugin(installed_plugins()["ahead"])


def test_a_name_that_two_packages_claim_belongs_to_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "shared", GOOD)
    write_metadata(tmp_path, "another-package", "1.0", {"shared": "plugin_shared:Plugin"})
    assert "shared" not in platform_names()


def test_a_plugin_cannot_take_the_name_of_the_core_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = install(tmp_path, monkeypatch, "cpu", GOOD)
    assert type(load_platform("cpu")).__name__ == "CpuPlatform"
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("version", "wanted", "holds"),
    [
        ("2.11.0+cpu", ">=2.11,<2.14", True),
        ("2.14.0", ">=2.11,<2.14", False),
        ("2.9", ">=2.11", False),
        ("1.0", "", True),
        ("3.6", "==3.6.0", True),
    ],
)
def test_ranges_are_read_as_pip_writes_them(version: str, wanted: str, holds: bool) -> None:
    assert is_within(version, wanted) == holds
