"""What a platform says of telemetry and of compiling has a reader: `doctor`."""

from __future__ import annotations

from pathlib import Path

from trivium.commands.energy import check_telemetry
from trivium.commands.report_lines import doctor_report
from trivium.engine.report import compile_sentence
from trivium.observe.energy import EnergyMeter
from trivium.platform.contract import Compile, Telemetry, declared, unknown
from trivium.types.report import Report

NVML = declared(Telemetry(("energy", "power", "clocks"), "NVML"), "NVML")


def test_energy_that_is_promised_and_cannot_be_read_is_said(tmp_path: Path) -> None:
    check = check_telemetry(NVML, EnergyMeter(tmp_path / "nothing"))
    assert check is not None and check.state == "warn"
    assert "no energy counters" in check.measured and "NVML" in check.wanted


def test_energy_that_can_be_read_is_told_with_what_is_not_exported(tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "energy_uj").write_text("5")
    check = check_telemetry(NVML, EnergyMeter(tmp_path))
    assert check is not None and (check.state, check.measured) == (
        "ok",
        "energy is read and exported; power, clocks are not",
    )


def test_nobody_misses_what_was_not_promised(tmp_path: Path) -> None:
    meter = EnergyMeter(tmp_path / "nothing")
    assert check_telemetry(unknown("there is none"), meter) is None
    assert check_telemetry(declared(Telemetry(("power",), "a tool"), "a tool"), meter) is None


def test_a_first_start_that_compiles_says_for_how_long() -> None:
    kept = compile_sentence(Compile("triton", cached=True, expected_seconds=60.0))
    assert kept == "kernels by triton, about 60 s at a first start; the next start finds them made"
    assert "and at every start again" in compile_sentence(Compile("a compiler", cached=False, expected_seconds=5.0))
    assert "does not say for how long" in compile_sentence(None)
    assert f"compiles  {kept}" in list(doctor_report(Report(compiles=kept)))
    assert not [line for line in doctor_report(Report()) if line.startswith("compiles")]
