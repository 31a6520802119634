"""Faults in what a server does beside answering: files that are read again, models that are stored, come and go. Only who
asked for what failed is told so; the models in memory answer to the bit as before, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest
from fleet_server import FIRST, KEYS, MORE_KEYS, SECOND, FleetServer
from server_process import wait_for


@pytest.fixture(scope="module")
def the_fleet(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetServer]:
    fleet = FleetServer(tiny_model, tmp_path_factory.mktemp("fleet"))
    yield fleet
    assert fleet.process.stop() == 0


@pytest.fixture
def fleet(the_fleet: FleetServer) -> Iterator[FleetServer]:
    """As it was at the start, before and after."""
    yield the_fleet
    the_fleet.plan.disarm()
    the_fleet.check_alone()


@pytest.mark.parametrize("action", ["raise", "os_error"])
def test_keys_that_cannot_be_read_again_stay_as_they_were(fleet: FleetServer, action: str) -> None:
    fleet.keys.write_text(MORE_KEYS)
    fleet.plan.arm({"point": "access.read_keys", "action": action})
    fleet.hang_up("not read again")
    assert fleet.plan.fired() == ["access.read_keys"]
    assert (fleet.ask("house").status_code, fleet.ask("house", headers=SECOND).status_code) == (200, 401)
    fleet.hang_up("read again: keys")
    assert fleet.ask("house", headers=SECOND).status_code == 200
    fleet.keys.write_text(KEYS)
    fleet.hang_up("read again: keys")
    assert fleet.ask("house", headers=SECOND).status_code == 401


@pytest.mark.parametrize("point", ["access.read_certificate", "access.reopen_log"])
@pytest.mark.parametrize("action", ["raise", "os_error"])
def test_a_certificate_or_log_that_cannot_be_taken_up_again_stays_as_it_was(
    fleet: FleetServer, point: str, action: str
) -> None:
    fleet.plan.arm({"point": point, "action": action})
    fleet.hang_up("not read again")
    assert fleet.plan.fired() == [point]
    num_lines = len(fleet.log.read_text().splitlines())
    assert fleet.ask("house").status_code == 200
    wait_for(lambda: len(fleet.log.read_text().splitlines()) > num_lines or None)
    fleet.hang_up("read again: keys")


@pytest.mark.parametrize(("action", "code"), [("raise", "internal_error"), ("os_error", "model_load_failed")])
def test_a_model_whose_manifest_cannot_be_read_is_not_taken_for_one_that_is_not_there(
    fleet: FleetServer, action: str, code: str
) -> None:
    fleet.plan.arm({"point": "store.read_manifest", "action": action})
    failed = fleet.ask("ant")
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, code)
    assert fleet.plan.fired() == ["store.read_manifest"]
    assert fleet.engines() == {fleet.engine}
    assert fleet.ask("ant").json()["choices"] == fleet.right


def test_a_damaged_model_does_not_keep_the_others_from_being_listed(fleet: FleetServer) -> None:
    fleet.plan.arm({"point": "store.read_manifest", "action": "os_error"})
    listed = {model["id"] for model in fleet.process.get("/v1/models").json()["data"]}
    assert fleet.plan.fired() == ["store.read_manifest"]
    assert listed in ({"house", "ant"}, {"house", "bee"})
    assert {model["id"] for model in fleet.process.get("/v1/models").json()["data"]} == {"house", "ant", "bee"}


@pytest.mark.parametrize("point", ["store.write_file", "store.read_file", "store.write_manifest"])
@pytest.mark.parametrize("action", ["raise", "os_error"])
def test_a_model_that_cannot_be_stored_leaves_nothing(
    fleet: FleetServer, tiny_model: Path, point: str, action: str
) -> None:
    client = ollama.Client(fleet.process.url, headers=FIRST, verify=False)
    files = {path.name: client.create_blob(path) for path in tiny_model.iterdir() if path.is_file()}
    fleet.plan.arm({"point": point, "action": action})
    with pytest.raises(ollama.ResponseError) as failed:
        client.create("made", files=files)
    assert failed.value.status_code == 500
    assert fleet.plan.fired() == [point]
    assert not list((fleet.store.root / "staging").iterdir())
    assert not fleet.store.has("made")
    assert client.create("made", files=files).status == "success"
    fleet.store.verify("made")
    client.delete("made")


@pytest.mark.parametrize("action", ["raise", "os_error", "memory"])
def test_a_load_that_fails_is_told_and_the_next_one_goes_well(fleet: FleetServer, action: str) -> None:
    fleet.plan.arm({"point": "fleet.load", "action": action})
    failed = fleet.ask("ant")
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "model_load_failed")
    assert fleet.plan.fired() == ["fleet.load"]
    assert fleet.engines() == {fleet.engine}
    assert fleet.ask("ant").json()["choices"] == fleet.right


def test_room_that_cannot_be_made_costs_only_who_needs_it(fleet: FleetServer) -> None:
    assert fleet.ask("ant").status_code == 200
    fleet.plan.arm({"point": "fleet.evict"})
    failed = fleet.ask("bee")
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "model_load_failed")
    assert fleet.plan.fired() == ["fleet.evict"]
    assert fleet.loaded() == {"house", "ant"}
    assert fleet.ask("bee").json()["choices"] == fleet.right
    assert fleet.loaded() == {"house", "bee"}


def test_a_model_that_goes_goes_also_where_its_end_fails_at_first(fleet: FleetServer) -> None:
    assert fleet.ask("ant").status_code == 200
    (engine,) = fleet.engines() - {fleet.engine}
    fleet.plan.arm({"point": "fleet.let_go"})
    assert fleet.unload("ant").status_code == 200
    assert fleet.plan.fired() == ["fleet.let_go"]
    assert not Path(f"/proc/{engine}").exists()
    assert fleet.ask("bee").status_code == 200, "its memory was given back"


def test_a_look_that_fails_does_not_keep_models_whose_time_is_over(fleet: FleetServer) -> None:
    fleet.plan.arm({"point": "fleet.watch"})
    body = {"model": "ant", "prompt": "a", "stream": False, "options": {"num_predict": 1}, "keep_alive": "1s"}
    assert fleet.process.post("/api/generate", body).status_code == 200
    wait_for(lambda: fleet.engines() == {fleet.engine} or None)
    assert fleet.plan.fired() == ["fleet.watch"]
