"""docs/metrics.md, the dashboard and the server tell of the same metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from server_process import ServerProcess

from trivium.observe.vllm_names import NAMES

DOCS = Path(__file__).parents[2] / "docs"
SUFFIXES = ("_bucket", "_count", "_sum")


@pytest.fixture(scope="module")
def exposed(server: ServerProcess) -> dict[str, float]:
    assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "ignore_eos": True}).status_code == 200
    return server.wait_until_idle()


def names(exposed: dict[str, float]) -> set[str]:
    found = {name for sample in exposed if not (name := sample.partition("{")[0]).endswith("_created")}
    for suffix in SUFFIXES:
        found = {name.removesuffix(suffix) for name in found}
    return found


def documented() -> set[str]:
    return set(re.findall(r"`((?:trivium|vllm)[:_][a-z0-9_*]+)", (DOCS / "metrics.md").read_text()))


def test_every_metric_has_its_sentence(exposed: dict[str, float]) -> None:
    told = documented()
    prefixes = tuple(name.removesuffix("*") for name in told if name.endswith("*"))
    assert {name for name in names(exposed) if name not in told and not name.startswith(prefixes)} == set()


def test_every_sentence_is_of_a_metric(exposed: dict[str, float]) -> None:
    """Those with a reason appear with their first one; cost and energy where there is a price and where energy can be read."""
    rare = {
        "trivium_eager_steps_total",
        "trivium_op_fallbacks_total",
        "trivium_demotions_total",
        "trivium_held_back_total",
        "trivium_request_cost_total",
        "trivium_request_joules_total",
    }
    assert {name for name in documented() if not name.endswith("*")} - names(exposed) <= rare


def test_the_dashboard_asks_for_what_there_is(exposed: dict[str, float]) -> None:
    text = (DOCS / "grafana-dashboard.json").read_text()
    asked = set(re.findall(r"trivium_[a-z0-9_]+", " ".join(re.findall(r'"expr": "([^"]*)"', text))))
    assert json.loads(text)["panels"] and asked
    assert {name.removesuffix("_bucket") for name in asked} <= documented()


def test_vllms_names_say_the_same(exposed: dict[str, float]) -> None:
    by_name: dict[str, float] = {}
    for sample, value in exposed.items():
        by_name[sample.partition("{")[0]] = by_name.get(sample.partition("{")[0], 0.0) + value
    compared = 0
    for ours, theirs in NAMES.items():
        for name in theirs:
            for suffix in ("", "_total", "_count", "_sum"):
                if ours + suffix in by_name:
                    assert by_name[name + suffix] == by_name[ours + suffix]
                    compared += 1
    assert compared >= len(NAMES)
    assert by_name["vllm:kv_cache_usage_perc"] == 0.0
    assert by_name["vllm:generation_tokens_total"] >= 3
