"""`trivium doctor` as a user types it, the start report, and GET /v1/report: one report, and the truth beside it."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import msgspec
import pytest
from server_process import ServerProcess
from tiny_model import EXACT, MODEL

from trivium.cli import main
from trivium.engine.preview import Preview
from trivium.serve.listen import check_port
from trivium.types.report import Report

# As the shared server was started.
OPTIONS = (*EXACT, "--num-threads", "1")


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["doctor", *arguments])
    return code, capsys.readouterr().out


def test_what_the_server_tells_is_what_the_doctor_foretold(
    server: ServerProcess, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = doctor(capsys, str(tiny_model), *OPTIONS, "--context", "100", "--json")
    found = msgspec.json.decode(out, type=Preview)
    told = msgspec.json.decode(server.get("/v1/report").content, type=Report)
    assert code == 0 and found.report.refusal is None and told.happened is not None
    assert (told.kernels, told.graph, told.model, told.platform) == (
        found.report.kernels,
        found.report.graph,
        found.report.model,
        found.report.platform,
    )
    assert told.happened.kernels == told.kernels and told.happened.graph == told.graph
    planned = {item.what: item.planned_bytes for item in found.report.memory}
    counted = {item.what: item.used_bytes for item in told.memory if item.used_bytes is not None}
    assert counted == {what: planned[what] for what in ("weights", "KV cache", "tables")}
    assert told.happened.resident_bytes > told.happened.resident_before_bytes > 0
    assert found.report.room is not None and found.report.room.context == 100
    assert found.report.room.requests > 0
    assert {check.name for check in found.report.checks} >= {"version-torch", "shared-memory", "cache", "torch-op"}
    assert found.facts is not None and found.facts.device is not None
    assert found.facts.device.inventory.value is not None and found.facts.device.inventory.value[0].total_bytes > 0


def test_a_model_is_asked_for_by_name_and_one_that_is_not_loaded_is_404(server: ServerProcess) -> None:
    assert server.get(f"/v1/report?model={MODEL}").json()["model"]["family"] == "llama"
    missing = server.get("/v1/report?model=another")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_calls_that_went_to_the_reference_against_the_plan_are_told(server: ServerProcess) -> None:
    report = msgspec.json.decode(server.get("/v1/report").content, type=Report)
    if report.kernels[0].kernel == "reference":
        pytest.skip("there are no native kernels to fall back from")
    ask = {"model": MODEL, "prompt": "a", "max_tokens": 2, "temperature": 1.0, "typical_p": 0.5, "seed": 1}
    assert server.post("/v1/completions", ask).status_code == 200
    report = msgspec.json.decode(server.get("/v1/report").content, type=Report)
    assert report.happened is not None and report.happened.op_fallbacks["sample: typical_p"] >= 1


def test_the_start_says_what_memory_is_planned(server: ServerProcess) -> None:
    (memory,) = [line for line in server.log.splitlines() if line.startswith("memory ")]
    assert "weights" in memory and "KV cache" in memory and "the process grew by" in memory


def test_a_model_without_a_tokenizer_is_refused_by_doctor_and_start_alike(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(tiny_model, tmp_path / "copy"))
    for file in copy.glob("tokenizer*"):
        file.unlink()
    code, out = doctor(capsys, str(copy))
    refusal = out.splitlines()[-1]
    assert code == 1 and refusal.startswith("REFUSED") and "tokenizer" in refusal
    assert main(["run", "hello", "--model", str(copy)]) == 1
    assert capsys.readouterr().err.strip().removeprefix("trivium: ") in refusal
    code, out = doctor(capsys, str(copy), "--skip-tokenizer-init")
    assert code == 0 and out.splitlines()[-1] == "verdict   it will run"


def test_without_a_model_the_machine_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = doctor(capsys, "--device", "cpu")
    assert code == 0
    assert out.startswith("platform  cpu on cpu: ") and "paged_attention" in out and "checks " in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such-model",), "no-such-model"),
        (("--device", "tpu"), "device 'tpu' is none of auto, cuda, cpu"),
    ],
)
def test_what_cannot_be_is_exit_code_1_and_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = doctor(capsys, *arguments)
    assert code == 1
    assert out.splitlines()[-1].startswith("REFUSED") and said in out


def test_a_port_that_is_taken_is_a_failure_where_it_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, out = doctor(capsys, "--device", "cpu", "--port", str(port))
    assert code == 1 and out.splitlines()[-1] == "REFUSED   a check failed"
    (line,) = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert line.startswith(f"FAIL      port: port {port} on 127.0.0.1 is in use by another program")
    assert "choose another with --port" in line


def test_a_default_port_that_is_taken_is_only_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        check = check_port("127.0.0.1", other.getsockname()[1], is_asked_for=False)
    assert (check.name, check.state) == ("port", "warn") and check.remedy
    assert check_port("127.0.0.1", 0, is_asked_for=True).state == "ok"


def test_a_variable_that_nobody_reads_stops_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIVIUM_HOEM", "/tmp")
    assert main(["list"]) == 1
    assert "did you mean TRIVIUM_HOME?" in capsys.readouterr().err
