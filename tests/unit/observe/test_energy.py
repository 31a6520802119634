from __future__ import annotations

from pathlib import Path

import pytest

from trivium.observe.energy import EnergyMeter
from trivium.observe.prices import Prices, read_prices
from trivium.types.errors import InvalidRequestError


def package(root: Path, number: int, microjoules: int) -> Path:
    zone = root / f"intel-rapl:{number}"
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text(f"{microjoules}\n")
    (zone / "max_energy_range_uj").write_text("10000000\n")
    return zone


def test_packages_are_summed_and_their_parts_are_not_counted_twice(tmp_path: Path) -> None:
    zones = [package(tmp_path, number, 5_000_000) for number in range(2)]
    (tmp_path / "intel-rapl:0:0").mkdir()  # the cores of package 0
    meter = EnergyMeter(tmp_path)
    assert (meter.why_not, meter.read()) == ("", 0.0)
    for zone in zones:
        (zone / "energy_uj").write_text("6500000\n")
    assert meter.read() == pytest.approx(3.0)
    assert meter.read() == pytest.approx(3.0)


def test_a_counter_that_begins_again_loses_nothing(tmp_path: Path) -> None:
    zone = package(tmp_path, 0, 9_000_000)
    meter = EnergyMeter(tmp_path)
    (zone / "energy_uj").write_text("500000\n")
    assert meter.read() == pytest.approx(1.5)


def test_what_gpus_have_used_is_added_and_may_be_all_that_is_known(tmp_path: Path) -> None:
    zone, used = package(tmp_path, 0, 1_000_000), 700.0
    both, alone = EnergyMeter(tmp_path, lambda: used), EnergyMeter(tmp_path / "nowhere", lambda: used)
    used = 702.5
    (zone / "energy_uj").write_text("2000000\n")
    assert both.read() == pytest.approx(3.5) and alone.read() == pytest.approx(2.5)
    gone = EnergyMeter(tmp_path, lambda: None)
    assert gone.read() is None and "GPUs" in gone.why_not


def test_where_energy_cannot_be_read_it_is_said_why(tmp_path: Path) -> None:
    meter = EnergyMeter(tmp_path / "nowhere")
    assert meter.read() is None and "nowhere" in meter.why_not
    zone = package(tmp_path, 0, 1)
    meter = EnergyMeter(tmp_path)
    (zone / "energy_uj").unlink()
    assert meter.read() is None and meter.why_not


def test_a_price_is_of_time_and_energy(tmp_path: Path) -> None:
    prices = Prices(currency="EUR", machine_hour=3.6, kwh=0.36)
    assert prices.cost(10.0, 1e6).amount == pytest.approx(0.01 + 0.1)
    assert prices.cost(10.0, None).amount == pytest.approx(0.01)
    wrong = tmp_path / "prices.json"
    for text in ("", "{}", '{"currency": "EUR", "hour": 1}'):
        wrong.write_text(text)
        with pytest.raises(InvalidRequestError, match="price file"):
            read_prices(wrong)
