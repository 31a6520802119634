"""A card without memory: what the start says, what a step costs, that nothing stays taken; and what `doctor` foretells.

They fill the card, so nothing else may run on it meanwhile.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.engine.preview import PreviewRequest, preview
from trivium.kernels.graph_capture import GraphCapture
from trivium.types.errors import ConfigError
from trivium.types.request import Request, Sampling, Stopping

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]

MIB = 1 << 20
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 100000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
SLACK = MIB  # what kernels keep for good, once they were used: counters, tables
LIBRARY_SLACK = 64 * MIB  # of a capture that failed within a library
SMALL = {"kv_cache_bytes": 1 << 30, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shape")
    (path / "config.json").write_text(json.dumps(SHAPE))
    return path


def options(directory: Path, **values: object) -> EngineOptions:
    given = {"model": str(directory), "load_format": "dummy", "device": "cuda", "skip_tokenizer_init": True, **values}
    return EngineOptions(**given)  # type: ignore[arg-type]


def taken() -> int:
    """Bytes that tensors hold, when nobody is left who could let go of some. What torch keeps beside goes back to the card,
    since a start asks the card itself what is free."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def taken_by_nobody() -> int:
    """Where no engine is left: without the work space that libraries keep for each stream they met."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return taken()


def hold_all_but(left: int) -> Tensor:
    """Or a little less: what the driver can give in one piece."""
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    for attempt in range(64):
        try:
            return torch.empty((free - left) // MIB * MIB - attempt * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            continue
    raise AssertionError(f"{free} bytes are free, and none can be had")


def serve(core: EngineCore, *lengths: int) -> dict[str, str | None]:
    """What became of prompts of these lengths: None, or the error."""
    ended: dict[str, str | None] = {}
    for length in lengths:
        stopping = Stopping(max_tokens=4, min_tokens=4)
        prompt = tuple((31 * length + i) % 40000 for i in range(length))  # of which nothing is cached
        core.add(Request(str(length), prompt, Sampling(seed=0, temperature=0.0), stopping, arrival=0.0))
    while core.has_work:
        for delta in core.step():
            if delta.finish_reason is not None:
                ended[delta.request_id] = delta.error
        core.assert_balanced()
    return ended


def test_a_start_without_room_for_the_weights_says_so_in_numbers_and_leaves_nothing(directory: Path) -> None:
    before = taken_by_nobody()
    held = hold_all_but(100 * MIB)
    with pytest.raises(ConfigError, match=r"the weights take \d{3} MiB, and \d+ of the \d+ MiB of .* are free"):
        EngineCore(options(directory, **SMALL))
    del held
    assert taken_by_nobody() - before < SLACK


def test_a_cache_that_is_asked_for_and_does_not_fit_is_told_of_and_leaves_nothing(directory: Path) -> None:
    before = taken_by_nobody()
    _, total = torch.cuda.mem_get_info()
    said = (
        rf"keys and values take {2 * total // MIB // 1000}\d+ MiB, and \d+ of the \d+ MiB of .*: lower kv_cache_bytes"
    )
    with pytest.raises(ConfigError, match=said):
        EngineCore(options(directory, max_num_seqs=8, kv_cache_bytes=2 * total))
    assert taken_by_nobody() - before < SLACK


def test_captures_without_memory_are_done_without_and_it_is_said(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = taken_by_nobody()
    capture = GraphCapture.__call__
    attempts: list[int] = []

    def starved_at_first(self: GraphCapture, work: Callable[[], None]) -> Callable[[], None]:
        attempts.append(1)
        held = hold_all_but(0) if len(attempts) <= 2 else None
        try:
            return capture(self, work)
        finally:
            del held
            torch.cuda.empty_cache()

    monkeypatch.setattr(GraphCapture, "__call__", starved_at_first)
    core = EngineCore(options(directory, **SMALL))
    assert "no memory to capture steps of" in core.card.graph or "could not be captured" in core.card.graph
    assert core._runner.graph._decode is not None and len(core._runner.graph._decode.sizes) < len(attempts)
    assert serve(core, 20, 300) == {"20": None, "300": None}
    del core
    assert taken_by_nobody() - before < LIBRARY_SLACK


def test_a_step_without_memory_costs_its_request_alone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest keeps what is logged, with the traceback of the step that failed, and so the tensors in its frames.
    monkeypatch.setattr(logging.getLogger("trivium.engine.core"), "disabled", True)
    core = EngineCore(options(directory, **SMALL))
    assert serve(core, 30, 8000) == {"30": None, "8000": None}
    before = taken()
    held = hold_all_but(96 * MIB)  # less than the 125 that gate and up of 8,001 tokens take, enough for a short prompt
    ended = serve(core, 30, 8001)
    assert ended["8001"] is not None and "no memory of the GPU was left for the step" in ended["8001"]
    assert serve(core, 31) == {"31": None}, "it goes on for those whom the memory is enough for"
    del held
    assert serve(core, 8002) == {"8002": None}, "and for all when there is memory again"
    assert taken() - before < SLACK
    assert core.stats().held_blocks == 0


def test_doctor_foretells_what_is_then_used(directory: Path) -> None:
    """Half of the card: more is the same with less room for what other tests left in this process."""
    taken_by_nobody()
    torch.cuda.empty_cache()
    asked = options(directory, gpu_memory_utilization=0.5, max_num_seqs=256)
    report = preview(PreviewRequest(asked)).report
    assert report.refusal is None
    on_device = {item.what: item.planned_bytes for item in report.memory if item.what != "process"}
    free_before, _ = torch.cuda.mem_get_info()
    core = EngineCore(asked)
    assert all(error is None for error in serve(core, *range(1000, 1032)).values())
    free_now, _ = torch.cuda.mem_get_info()
    planned, used = sum(on_device.values()), free_before - free_now
    told = f"{planned / MIB:.0f} MiB planned ({on_device}), {used / MIB:.0f} used: {planned / used - 1:+.1%}"
    print(told)
    assert abs(planned - used) <= 0.05 * used, told
    del core
    gc.collect()
    torch.cuda.empty_cache()
