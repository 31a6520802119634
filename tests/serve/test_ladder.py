"""Kernels that an earlier trial found wrong: the server runs on the rung below, and tells why in its report and metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from server_process import ServerProcess

from trivium.engine.kept_verdicts import KeptVerdicts, build_of_native
from trivium.engine.trial import TrialRequest, Verdict
from trivium.kernels.native import native_state, usable_instruction_sets
from trivium.kernels.ops import OP_NAMES
from trivium.platform.cpu import CpuPlatform
from trivium.types.decisions import Wish


@pytest.mark.skipif(
    "native" not in native_state() or len(usable_instruction_sets()) < 2, reason="there is no native rung below"
)
def test_a_rung_that_was_found_wrong_is_not_used_and_report_and_metrics_say_why(
    tiny_model: Path, tmp_path: Path
) -> None:
    *_, lower, best = usable_instruction_sets()
    kept = KeptVerdicts(tmp_path, build_of_native(CpuPlatform().capabilities().name))
    for instruction_set, problem in ((best, "it lies"), (lower, None)):
        request = TrialRequest(
            platform=None,
            wish=Wish(kernels="auto"),
            device="cpu",
            dtype="float32",
            num_threads=1,
            instruction_set=instruction_set,
            used=OP_NAMES,
        )
        kept.of(request, lambda _, problem=problem: [Verdict("linear", problem)])  # type: ignore[misc]
    options = ("--num-threads", "1", "--dtype", "float32", "--device", "cpu")
    server = ServerProcess(str(tiny_model), *options, environment={"TRIVIUM_HOME": str(tmp_path)})
    try:
        report = server.get("/v1/report").json()
        metrics = server.metrics()
    finally:
        assert server.stop() == 0
    assert {choice["kernel"] for choice in report["happened"]["kernels"]} == {f"native {lower}"}
    assert report["fallbacks"] == [f"native {best}: not used, since linear: it lies"]
    assert report["happened"]["demotions"] == {f"native {best}: not used, since linear: it lies": 1}
    told = f'trivium_demotions_total{{op="native {best}",reason="not used, since linear: it lies"}}'
    assert metrics[told] == 1
