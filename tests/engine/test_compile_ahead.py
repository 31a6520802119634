"""Kernels are compiled beside the start: all that the engine will launch, and nothing depends on it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trivium.config.options import EngineOptions
from trivium.engine.compile_ahead import AheadCompiler, start_ahead_compiler
from trivium.engine.plan import plan_start
from trivium.types.compile_target import CompileTarget

pytest.importorskip("triton")

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
SPARSE = SMALL | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def run_compiling(*arguments: str, cache: Path) -> Any:
    """What a script printed where Triton compiles: in this process it interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-3000:]
    return json.loads(told.stdout)


@pytest.mark.parametrize(
    ("config", "options"),
    [(SMALL, []), (SPARSE, []), pytest.param(SPARSE, ["deterministic"], marks=pytest.mark.slow)],
    ids=["dense", "sparse", "deterministic"],
)
def test_no_step_in_service_launches_a_kernel_that_the_dry_run_did_not_foresee(
    config: dict[str, Any], options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = run_compiling(str(HERE / "ahead_probe.py"), str(tmp_path), *options, cache=tmp_path)
    assert told["launched"] > 10
    assert told["missing"] == []


def test_what_workers_compile_is_found_in_the_cache_and_what_they_cannot_keeps_them_from_nothing(
    tmp_path: Path,
) -> None:
    told = run_compiling(str(HERE / "workers_probe.py"), cache=tmp_path)
    assert (told["before"], told["after"], told["hits"]) == (0, 1, [True])
    assert any(trouble.startswith("no_such_kernel: AttributeError") for trouble in told["troubles"])


def test_the_process_hears_the_plan_and_tries_every_step_on_shapes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SPARSE))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # of the process that is started now
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    options = EngineOptions(
        model=str(tmp_path), load_format="dummy", skip_tokenizer_init=True, device="cpu", dtype="bfloat16",
        kv_cache_bytes=64 << 20, max_num_seqs=8, max_model_len=2048,
    )  # fmt: skip
    with AheadCompiler(num_workers=0) as compiler:
        compiler.begin(plan_start(options).config, CompileTarget("cuda", 90, 32, num_processors=132))
        compiler._process.wait()
        told = compiler.end()
    assert re.match(r"[1-9]\d kernels compiled or found ahead by 0 workers", told), told
    assert "shapes alone" not in told


def waits_for(command: str) -> AheadCompiler:
    return AheadCompiler(num_workers=1, command=("-c", command))


def test_a_process_that_was_killed_is_not_waited_for() -> None:
    with waits_for(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})") as compiler:
        compiler._process.wait()
        compiler._is_asked = True
        assert not compiler._is_working()
        assert compiler.end() == (
            f"no kernels were compiled ahead: the process that does it ended with exit code {-signal.SIGKILL}"
        )


def test_nothing_is_left_of_a_process_that_would_never_end() -> None:
    with waits_for("import time; time.sleep(1000)") as compiler:
        assert compiler._is_working()
        assert compiler.end() == ""
        assert compiler._process.returncode == -signal.SIGKILL


def test_nobody_compiles_ahead_for_a_processor_or_for_the_reference() -> None:
    assert start_ahead_compiler(EngineOptions(model="m", device="cpu")) is None
    assert start_ahead_compiler(EngineOptions(model="m", kernels="reference")) is None


def test_a_kernel_that_others_are_compiling_is_waited_for_and_no_longer_than_they_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime.cache import FileCacheManager, get_cache_manager

    from trivium.kernels.triton.ahead import waiting_for_others

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    key, num_looks = "ab" * 32, 0

    def are_working() -> bool:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 3:
            FileCacheManager(get_cache_manager(key).key).put("compiled", "kernel.cubin")
        return num_looks < 10

    with waiting_for_others(are_working) as waited:
        found = get_cache_manager(key).get_file("kernel.cubin")
        assert found is not None and Path(found).read_text() == "compiled"
        assert num_looks == 3
        assert get_cache_manager(key).get_file("other.cubin") is None
        assert num_looks == 10
        assert waited() > 0
    assert type(get_cache_manager(key)) is FileCacheManager


def test_kernels_go_elsewhere_where_their_folder_cannot_be_written_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from triton import knobs

    from trivium.kernels.triton.cache_folder import make_cache_usable

    (tmp_path / "file").write_text("")
    closed = tmp_path / "file" / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(closed))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with knobs.cache.scope():
        make_cache_usable()
        assert Path(knobs.cache.dir).parent == tmp_path
        assert str(closed) in caplog.text
