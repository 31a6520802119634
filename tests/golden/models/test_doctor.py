"""What `doctor` foretells is what happens: the same refusals in the same words, memory to the byte, kernels by name.

Memory is compared as counted bytes: of all tensors of the weights, of the KV pool, and of the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_file import write_gguf
from kernel_spy import KernelSpy
from oracle import SIZES, random_weights, saved
from safetensors.torch import load_file, save_file
from test_families import MODELS
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from trivium.config.options import EngineOptions
from trivium.engine import plan as engine_plan
from trivium.engine.core import EngineCore
from trivium.engine.examine import foresee
from trivium.engine.kept_verdicts import FOLDER
from trivium.engine.open_core import open_core
from trivium.engine.preview import PreviewRequest
from trivium.kernels.select import select_ops
from trivium.platform import cpu
from trivium.types.errors import TriviumError
from trivium.types.report import Report
from trivium.types.request import Request, Sampling, Stopping

SMALL = SIZES | {"hidden_size": 64, "intermediate_size": 96}
WIDE = SIZES | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    name: str
    model: str = "llama"
    options: dict[str, Any] = field(default_factory=dict)
    memory: tuple[int, int] | None = None  # total, free bytes; None: the machine's own

    def __str__(self) -> str:
        return self.name


def gguf(kind: str, config: type = LlamaConfig, model: type = LlamaForCausalLM, **sizes: Any) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        made = random_weights(model(config(**((WIDE if "_K" in kind else SMALL) | sizes))))
        return write_gguf(made, "llama", directory / "model.gguf", lambda name: kind)

    return write


def family(name: str) -> Callable[[Path], Path]:
    return lambda directory: saved(MODELS[name](), directory)


def stored_in(dtype: torch.dtype) -> Callable[[Path], Path]:
    return lambda directory: saved(MODELS["llama tied"]().to(dtype), directory)


def changed(change: Callable[[Path], None], base: str = "llama") -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        path = saved(MODELS[base](), directory)
        change(path)
        return path

    return write


def config(**values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        file = path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def tensors(**values: torch.Tensor | None) -> Callable[[Path], None]:
    """None takes a tensor away; __ stands for a dot."""

    def change(path: Path) -> None:
        weights = load_file(path / "model.safetensors")
        for name, weight in values.items():
            weights.pop(name.replace("__", "."), None)
            if weight is not None:
                weights[name.replace("__", ".")] = weight
        save_file(weights, path / "model.safetensors")

    return change


def cut(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def only_pickled(path: Path) -> None:
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(b"\x80")


def no_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


def garbage(directory: Path) -> Path:
    path = directory / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(range(60)))
    return path


def cut_gguf(directory: Path) -> Path:
    path = gguf("Q8_0")(directory)
    path.write_bytes(path.read_bytes()[:-5000])
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    **{name: family(name) for name in MODELS},
    **{f"gguf {kind}": gguf(kind) for kind in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")},
    **{f"gguf {kind}": gguf(kind) for kind in ("Q2_K", "Q4_K", "Q6_K")},
    "gguf tied": gguf("Q8_0", tie_word_embeddings=True),
    "gguf experts": gguf("Q8_0", MixtralConfig, MixtralForCausalLM, num_local_experts=3),
    "bfloat16": stored_in(torch.bfloat16),
    "float16": stored_in(torch.float16),
    "unknown family": changed(config(architectures=["FalconForCausalLM"])),
    "no family": changed(config(architectures=[])),
    "uneven heads": changed(config(num_key_value_heads=3)),
    "odd heads": changed(config(head_dim=11)),
    "unknown activation": changed(config(hidden_act="relu2")),
    "unknown rope": changed(config(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4, "factor": 2.0})),
    "no sizes": changed(config(hidden_size=None)),
    "other sizes": changed(config(intermediate_size=96)),
    "not json": changed(lambda path: (path / "config.json").write_text("{")),
    "cut": changed(cut),
    "missing tensor": changed(tensors(model__norm__weight=None)),
    "extra tensor": changed(tensors(model__layers__9__mlp__up_proj__weight=torch.ones(2, 2))),
    "misshapen tensor": changed(tensors(model__norm__weight=torch.ones(47))),
    "integer tensor": changed(tensors(model__norm__weight=torch.ones(48, dtype=torch.int32))),
    "pickled": changed(only_pickled),
    "no weights": changed(no_weights),
    "empty": lambda directory: directory,
    "absent": lambda directory: directory / "nothing-here",
    "garbage": garbage,
    "cut gguf": cut_gguf,
}

RUN = [
    *(Case(name, name) for name in WRITERS if name in MODELS or name.startswith("gguf") or "float16" in name),
    *(
        Case(f"{name} by the reference", name, {"kernels": "reference"})
        for name in ("llama tied", "gemma3", "gguf Q4_1")
    ),
    *(Case(f"activations {dtype}", "qwen3", {"dtype": dtype}) for dtype in ("bfloat16", "float16")),
    Case("activations bfloat16 of bfloat16", "bfloat16", {"dtype": "bfloat16"}),
    *(Case(f"cache {dtype}", options={"kv_cache_dtype": dtype}) for dtype in ("float32", "bfloat16", "int8")),
    *(Case(f"blocks of {size}", "gemma3", {"block_size": size}) for size in (1, 7, 64, 1024)),
    Case("few rows", options={"max_num_seqs": 1, "max_num_batched_tokens": 16}),
    Case("many rows", options={"max_num_seqs": 5000}),
    Case("short", options={"max_model_len": 20}),
    Case("little cache", options={"kv_cache_bytes": 40_000}),
    Case("little memory", memory=(64 * MIB, 4 * MIB)),
    Case("no files", "no weights", {"load_format": "dummy"}),
    Case("no files, tied", "llama tied", {"load_format": "dummy", "kernels": "reference"}),
    Case("too long, accepted", options={"max_model_len": 5000, "accept_adjustments": True}),
    Case(
        "odd blocks in int8, accepted", options={"block_size": 7, "kv_cache_dtype": "int8", "accept_adjustments": True}
    ),
    Case(
        "small steps, accepted",
        options={"max_num_seqs": 64, "max_num_batched_tokens": 8, "accept_adjustments": True},
    ),
    Case(
        "beyond the cache, accepted",
        options={"max_model_len": 500, "kv_cache_bytes": 40_000, "accept_adjustments": True},
    ),
]

BROKEN = (
    "unknown family",
    "no family",
    "uneven heads",
    "odd heads",
    "unknown activation",
    "unknown rope",
    "no sizes",
    "other sizes",
    "not json",
    "cut",
    "missing tensor",
    "extra tensor",
    "misshapen tensor",
    "integer tensor",
    "pickled",
    "no weights",
    "empty",
    "absent",
    "garbage",
    "cut gguf",
)
REFUSED = [
    *(Case(name, name) for name in BROKEN),
    Case("longer than the model", options={"max_model_len": 513}),
    Case("longer than the cache", options={"max_model_len": 500, "kv_cache_bytes": 40_000}),
    Case("less than a block", options={"kv_cache_bytes": 100}),
    Case("more cache than memory", options={"kv_cache_bytes": 1 << 50}),
    Case("more weights than memory", memory=(100_000, 90_000)),
    Case("more rows than memory", options={"max_num_seqs": 60000}, memory=(200 * MIB, 100 * MIB)),
    Case("steps too small", options={"max_num_seqs": 64, "max_num_batched_tokens": 8}),
    Case("odd blocks in int8", options={"block_size": 7, "kv_cache_dtype": "int8"}),
    Case("int8 by the reference", options={"kernels": "reference", "kv_cache_dtype": "int8"}),
    Case("kernels of another device", options={"kernels": "triton"}),
    Case("native in bfloat16", options={"kernels": "native", "dtype": "bfloat16"}),
    Case("no such device", options={"device": "tpu"}),
    Case("too many threads", options={"num_threads": 5000}),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Each is written once."""
    written: dict[str, Path] = {}

    def path_of(name: str) -> Path:
        if name not in written:
            written[name] = WRITERS[name](tmp_path_factory.mktemp("model"))
        return written[name]

    return path_of


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What trials of the kernels found: the same for all cases."""
    return tmp_path_factory.mktemp("verdicts")


@pytest.fixture
def asked(
    request: pytest.FixtureRequest,
    models: Callable[[str], Path],
    verdicts: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> EngineOptions:
    """The case's options, on the CPU whatever else is there."""
    case: Case = request.param
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path))
    (tmp_path / FOLDER).symlink_to(verdicts)
    if case.memory is not None:
        total, free = case.memory
        monkeypatch.setattr(cpu, "usable_memory", lambda: (total, free, "the test"))
    values = {"device": "cpu", "num_threads": 2, "max_num_seqs": 8} | case.options
    return EngineOptions(model=str(models(case.model)), **values)


def prompt_tokens(core: EngineCore) -> list[int]:
    """Four tokens, drawn after a prompt that is prefilled and decoded after."""
    prompt = tuple(range(3, 15))
    core.add(Request("one", prompt, Sampling(seed=0, temperature=0.0), Stopping(max_tokens=4), arrival=0.0))
    tokens: list[int] = []
    while core.has_work:
        for delta in core.step():
            tokens += delta.tokens
    return tokens


@pytest.mark.parametrize("asked", RUN, ids=str, indirect=True)
def test_what_is_said_to_run_runs_so(asked: EngineOptions) -> None:
    foreseen = foresee(PreviewRequest(asked))
    assert foreseen.refusal is None
    core = EngineCore(asked)
    with KernelSpy() as spy:
        assert prompt_tokens(core)
    core.assert_balanced()
    report = core.card.report
    assert report is not None and report.happened is not None
    check_same_decisions(foreseen, report)
    check_memory(foreseen, report)
    check_kernels(foreseen, spy, core)


def check_same_decisions(foreseen: Report, report: Report) -> None:
    for part in ("platform", "model", "kernels", "graph", "room", "fallbacks"):
        assert getattr(report, part) == getattr(foreseen, part), part
    settled = [(one.option, one.value) for one in foreseen.adjustments]
    assert settled == [(one.option, one.value) for one in report.adjustments]


def check_memory(foreseen: Report, report: Report) -> None:
    planned = {item.what: item.planned_bytes for item in foreseen.memory}
    used = {item.what: item.used_bytes for item in report.memory if item.used_bytes is not None}
    assert used.keys() == {"weights", "KV cache", "tables"}
    for what, count in used.items():
        assert count == planned[what], what


def check_kernels(foreseen: Report, spy: KernelSpy, core: EngineCore) -> None:
    report = core.card.report
    assert report is not None and report.happened is not None
    assert report.happened.kernels == foreseen.kernels
    assert core.execution_stats().op_fallbacks == {}
    announced = {choice.op: choice.kernel for choice in foreseen.kernels}
    by_reference = {op for op, kernel in announced.items() if kernel == "reference"}
    assert spy.references <= by_reference, "the reference ran what it was not announced for"
    if by_reference:
        assert by_reference - {"logprobs", "sample"} <= spy.references
        assert spy.native == set()
    else:
        assert spy.references == set() and "sample" in spy.native
    assert report.happened.graph == foreseen.graph


OP_BY_OP = [
    Case(f"{name} op by op", name) for name in ("llama biases", "gemma3", "qwen3_moe", "gguf Q4_1", "gguf experts")
]


@pytest.mark.parametrize("asked", OP_BY_OP, ids=str, indirect=True)
def test_without_a_recording_the_announced_kernels_run_too(
    asked: EngineOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_plan, "select_ops", lambda *wish: replace(select_ops(*wish), record=None))
    foreseen = foresee(PreviewRequest(asked))
    if foreseen.kernels[0].kernel == "reference":
        pytest.skip("there are no native kernels")
    core = EngineCore(asked)
    with KernelSpy() as spy:
        assert prompt_tokens(core)
    assert core.card.graph == foreseen.graph == "none: these kernels have no graph mode"
    assert spy.references == set()
    assert {choice.op for choice in foreseen.kernels} - {"logprobs"} <= spy.native


@pytest.mark.parametrize("asked", REFUSED, ids=str, indirect=True)
def test_what_is_said_to_be_refused_is_refused_with_the_same_reason(asked: EngineOptions) -> None:
    foreseen = foresee(PreviewRequest(asked))
    with pytest.raises(TriviumError) as raised:
        open_core(asked)
    assert foreseen.refusal is not None
    assert (foreseen.refusal.kind, foreseen.refusal.reason) == (type(raised.value).__name__, str(raised.value))


ENCODER_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 80,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernels": "reference"},
        {"load_format": "dummy"},
        {"max_model_len": 9, "weight_form": "rows", "accept_adjustments": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("scores", [False, True])
def test_encoders_run_as_was_said_too(scores: bool, options: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    kind = BertForSequenceClassification if scores else BertModel
    saved(kind(BertConfig(**ENCODER_SIZES)).to(getattr(torch, dtype)), tmp_path)
    asked = EngineOptions(model=str(tmp_path), device="cpu", num_threads=2, packed_cache_bytes=0, **options)
    foreseen = foresee(PreviewRequest(asked))
    report = open_core(asked).card.report
    assert foreseen.refusal is None and report is not None and report.happened is not None
    for part in ("platform", "model", "kernels", "graph", "room", "fallbacks", "adjustments"):
        assert getattr(report, part) == getattr(foreseen, part), part
    assert report.memory[0].used_bytes == foreseen.memory[0].planned_bytes
    forms = [one.value for one in report.adjustments if one.option == "weight_form"]
    assert forms == (["blocks"] if "weight_form" in options else [])


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (None, {"max_model_len": 81}),
        (None, {"weight_form": "rows"}),
        (None, {"max_num_batched_tokens": 8}),
        (None, {"device": "tpu"}),
        (tensors(embeddings__LayerNorm__weight=None), {}),
        (tensors(embeddings__LayerNorm__weight=torch.ones(31)), {}),
        (tensors(another__tensor=torch.ones(3)), {}),
        (config(num_attention_heads=5), {}),
    ],
    ids=["long", "rows", "steps", "device", "missing", "misshapen", "extra", "heads"],
)
def test_encoders_are_refused_as_was_said_too(
    change: Callable[[Path], None] | None, options: dict[str, Any], tmp_path: Path
) -> None:
    saved(BertModel(BertConfig(**ENCODER_SIZES)), tmp_path)
    if change is not None:
        change(tmp_path)
    asked = EngineOptions(model=str(tmp_path), **({"device": "cpu"} | options))
    foreseen = foresee(PreviewRequest(asked))
    with pytest.raises(TriviumError) as raised:
        open_core(asked)
    assert foreseen.refusal is not None and foreseen.refusal.reason == str(raised.value)


def test_enough_is_tried() -> None:
    assert len(RUN) + len(REFUSED) >= 60
    assert len({case.name for case in [*RUN, *REFUSED]}) == len(RUN) + len(REFUSED)
