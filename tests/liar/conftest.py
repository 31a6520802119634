from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "platform"))  # plugin_files

import liar_ops
from liar_engine import CONFIG, finish, options, submit
from plugin_files import write_metadata

from trivium.engine.core import EngineCore


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the liar installed."""
    write_metadata(tmp_path / "site", "trivium-platform-liar", "0.1", {"liar": "liar_platform:make"})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(liar_ops.PRESSURE, "is_on", False)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "model"


@pytest.fixture
def right_tokens(model: Path) -> list[int]:
    core = EngineCore(options(model, "cpu", kernels="reference"))
    submit(core, "r", range(3, 21))
    return finish(core)[0]["r"]
