"""A whole experiment against a server that goes wrong in many ways: all of it is told."""

from __future__ import annotations

import asyncio

import pytest
from fake_peer import fake_peer
from hand_made import record

from trivium.bench import modes
from trivium.bench.errors import BenchError
from trivium.bench.experiment import Experiment
from trivium.bench.results import Results, results_of
from trivium.bench.settings import AnswerOptions, WorkloadSettings
from trivium.bench.table import result_lines
from trivium.bench.target import Place, reach

PROBES = ("right", "right")  # what the client asks before it measures


def measured(*behaviours: str, requests: int) -> tuple[Results, list[str], str]:
    """The results, the notes about the server, and the table."""

    async def run() -> tuple[Results, list[str], str]:
        experiment = Experiment()
        async with (
            fake_peer(*PROBES, *behaviours) as peer,
            reach(Place(base_url=peer.url), AnswerOptions(timeout=3.0)) as server,
        ):
            await modes.latency(experiment, server, WorkloadSettings(requests=requests, output_tokens=6, warmup=0))
            await experiment.metrics_of(server)
        made = record(*experiment.runs)
        results = results_of(made, experiment.samples)
        return results, server.notes, "\n".join(result_lines(made, results))

    return asyncio.run(run())


def test_each_failure_is_counted_by_its_kind_and_none_is_left_out() -> None:
    troubles = ("right", "status 429", "status 500", "cut", "hang", "error in stream", "status 429", "right")
    results, _, table = measured(*troubles, requests=len(troubles))
    (figures,) = results.runs
    assert (figures.requests, figures.completed) == (8, 2)
    assert figures.failures == {"cut": 1, "http 429": 2, "http 500": 1, "stream error": 1, "timeout": 1}
    assert "6 of 8 requests failed (1 × cut, 2 × http 429, 1 × http 500, 1 × stream error, 1 × timeout)" in table


def test_a_server_that_dies_under_the_load_is_measured_to_the_end() -> None:
    results, notes, _ = measured("right", "gone", requests=5)
    (figures,) = results.runs
    assert (figures.requests, figures.completed) == (5, 1)
    assert sum(figures.failures.values()) == 4 and {*figures.failures} <= {"refused", "reset"}
    assert any("metrics could not be read" in note for note in notes)


def test_a_server_that_cannot_answer_at_all_is_not_measured() -> None:
    async def run() -> None:
        async with fake_peer("status 500") as peer, reach(Place(base_url=peer.url), AnswerOptions()):
            pass

    with pytest.raises(BenchError, match="a first request failed \\(http 500\\): oh"):
        asyncio.run(run())


def test_a_server_that_does_not_count_tokens_is_told() -> None:
    async def run() -> list[str]:
        async with fake_peer("no usage") as peer, reach(Place(base_url=peer.url), AnswerOptions()) as server:
            return server.notes

    (note,) = asyncio.run(run())
    assert "does not count tokens" in note
