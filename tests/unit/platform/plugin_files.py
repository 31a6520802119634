"""Plugins as a package manager would leave them: a module, and metadata beside it that names the entry point."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "platform_plugin"

# What every misbehaving plugin begins with: the example, found beside it.
BASE = """
from trivium.platform.contract import Detection, DetectionState
from trivium.platform.cpu import CpuPlatform


class Good(CpuPlatform):
    name = {name!r}

    def detect(self):
        return Detection(DetectionState.PRESENT, "always")
"""


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, platform: str = "Plugin") -> str:
    """Returns the module's name. `source` may use Good, a sound platform of that name."""
    module = f"plugin_{name}"
    (directory / f"{module}.py").write_text(BASE.format(name=name) + dedent(source))
    write_metadata(directory, f"trivium-platform-{name}", "0.3.0", {name: f"{module}:{platform}"})
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, module, raising=False)  # another test's, of the same name
    return module


def install_example(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["trivium.platforms"]
    write_metadata(directory, project["name"], project["version"], entries)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))


def write_metadata(directory: Path, package: str, version: str, entries: dict[str, str]) -> None:
    info = directory / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[trivium.platforms]\n{lines}")
