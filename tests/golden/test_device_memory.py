"""A device without memory: what the start says, and that a step which lacks it costs only the request that wants it.

tests/gpu fills a real one; here the allocations raise as a GPU's do.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from msgspec.structs import replace
from torch import Tensor

from trivium.config.options import EngineOptions
from trivium.engine import core as engine_core
from trivium.engine.core import EngineCore
from trivium.execute.batch import Batch
from trivium.platform.cpu import CpuPlatform
from trivium.types.errors import ConfigError
from trivium.types.facts import Capabilities
from trivium.types.request import Request, Sampling, Stopping


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    next(family for family in FAMILIES if family.name == "llama").save(path)
    return path


def engine(directory: Path) -> EngineCore:
    return EngineCore(EngineOptions(model=str(directory), device="cpu", dtype="float32", kv_cache_bytes=64 << 20))


def no_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("_build_model", r"the weights take \d+ MiB, and \d+ of the \d+ MiB of .* are free.*: end what holds the rest"),
        ("KVCache", r"keys and values take 6[34] MiB, and \d+ of the \d+ MiB of .* are free.*: lower kv_cache_bytes"),
        ("Runner", r"the values of a step take \d+ MiB, and \d+ of the \d+ MiB of .* are free.*: lower"),
    ],
)
def test_a_start_without_room_says_what_it_takes_and_what_there_is(
    part: str, said: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_core, part, no_memory)
    with pytest.raises(ConfigError, match=said):
        engine(directory)


def test_weights_that_cannot_fit_are_refused_before_one_is_read_and_who_holds_the_rest_is_named(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = CpuPlatform.capabilities

    def nearly_full(platform: CpuPlatform) -> Capabilities:
        sources = (("held_by", "process 77: 4000 MiB"),)
        return replace(
            told(platform), memory_is_dedicated=True, memory_bytes=4100 << 20, available_bytes=1000, sources=sources
        )

    monkeypatch.setattr(CpuPlatform, "capabilities", nearly_full)
    monkeypatch.setattr(engine_core, "_build_model", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(
        ConfigError, match=r"0 of the 4100 MiB of .* are free \(held by process 77: 4000 MiB\): end what"
    ):
        engine(directory)


def test_only_the_request_that_wants_too_much_fails_and_what_is_free_is_logged(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = engine(directory)
    forward = core._runner.graph.forward
    given_back: list[bool] = []
    core._platform.give_back_unused = lambda: given_back.append(True)  # type: ignore[method-assign]

    def runs_out(batch: Batch, wanted: Tensor | None = None) -> Tensor:
        if len(batch.tokens) > 100:
            no_memory()
        return forward(batch, wanted)

    core._runner.graph.forward = runs_out  # type: ignore[method-assign]
    greedy = Sampling(seed=0, temperature=0.0)
    core.add(Request("large", tuple(range(3, 203)), greedy, Stopping(max_tokens=4), arrival=0.0))
    core.add(Request("small", tuple(range(3, 20)), greedy, Stopping(max_tokens=4, min_tokens=4), arrival=1.0))
    tokens, errors = 0, []
    with caplog.at_level(logging.ERROR):
        while core.has_work:
            for delta in core.step():
                tokens += len(delta.tokens)
                errors += [(delta.request_id, delta.error)] if delta.error else []
            core.assert_balanced()
    assert tokens == 4
    assert errors == [("large", "the engine failed while it computed this request (no memory was left for the step)")]
    assert given_back
    assert "MiB of" in caplog.text
    assert core.stats().held_blocks == 0
