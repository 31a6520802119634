"""A start tells its stages in their order, and how much of the weights it has."""

from __future__ import annotations

from pathlib import Path

from families import FAMILIES

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.types.start_progress import StartProgress, StartStage


def test_every_stage_is_told_and_weights_are_counted_to_their_end(tmp_path: Path) -> None:
    FAMILIES[0].save(tmp_path)
    told: list[StartProgress] = []
    core = EngineCore(
        EngineOptions(model=str(tmp_path), dtype="float32", kv_cache_bytes=16 << 20, device="cpu"), told.append
    )
    stages = list(dict.fromkeys(progress.stage for progress in told))
    assert stages == [
        StartStage.PLANNING,
        StartStage.DEVICE,
        StartStage.WEIGHTS,
        StartStage.CACHE,
        StartStage.RECORDING,
    ]
    assert core.card.report.happened is not None
    assert [passed.stage for passed in core.card.report.happened.start] == stages
    counted = [progress for progress in told if progress.total]
    done = [progress.done for progress in counted]
    assert len(counted) > 10
    assert done == sorted(done)
    assert done[-1] == counted[-1].total == (tmp_path / "model.safetensors").stat().st_size - header_bytes(tmp_path)


def header_bytes(directory: Path) -> int:
    with open(directory / "model.safetensors", "rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")
