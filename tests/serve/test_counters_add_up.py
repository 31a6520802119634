"""Counters add up exactly: with the answers, with each other, and also after faults, refusals and clients that left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fault_traffic
import pytest
from counter_identities import accounts, check_identities, total
from fault_plan import FaultPlan
from server_process import ServerProcess, wait_for
from tiny_model import MODEL
from wire import chunks

USER = [{"role": "user", "content": "Hello"}]
ANSWERED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 9, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 9, "n": 3, "seed": 1}),
    ("/v1/completions", {"prompt": ["Hello", "you", "Hello"], "max_tokens": 5}),
    ("/v1/completions", {"prompt": list(range(3, 103)), "max_tokens": 5, "best_of": 3, "n": 2, "ignore_eos": True}),
    ("/v1/embeddings", {"input": ["Hello", "you and me"]}),
)
REFUSED = (b"{", b'{"prompt": "Hi", "temperature": -1}', b'{"prompt": [99999999]}')


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> FaultPlan:
    return FaultPlan(tmp_path_factory.mktemp("counters"))


@pytest.fixture(scope="module")
def counted(tiny_model: Path, plan: FaultPlan) -> Iterator[ServerProcess]:
    options = ("--served-model-name", MODEL, "--slo-first-token-seconds", "1e-9", "--slo-inter-token-seconds", "600")
    process = ServerProcess(str(tiny_model), *options, environment=plan.environment)
    yield process
    process.stop()


def test_tokens_are_those_of_the_answers(counted: ServerProcess) -> None:
    before = check_identities(counted)
    usages = [counted.post(path, {"model": MODEL, **body}).json()["usage"] for path, body in ANSWERED]
    streamed = {**ANSWERED[0][1], "model": MODEL, "stream_options": {"include_usage": True}}
    usages.append(chunks(counted, ANSWERED[0][0], streamed)[-1]["usage"])
    after = check_identities(counted)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown("trivium_generated_tokens_total") == sum(usage.get("completion_tokens", 0) for usage in usages)
    assert grown("trivium_prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    found = sum((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for usage in usages)
    assert grown("trivium_cached_prompt_tokens_total") >= found
    cached, computed, left = (
        grown(f'trivium_begun_prompt_tokens_total{{state="{state}"}}') for state in ("cached", "computed", "left")
    )
    assert (cached + computed, left) == (grown("trivium_prompt_tokens_total"), 0)
    assert cached == grown("trivium_cached_prompt_tokens_total")
    assert grown('trivium_requests_ended_total{end="complete"}') == len(usages)
    assert grown("trivium_encoded_texts_total") == 2
    assert grown("trivium_kv_moved_bytes_total") > 0, "answers that share a prompt's last block go on in a copy"


def test_requests_that_did_not_get_what_is_promised_are_no_goodput(counted: ServerProcess) -> None:
    """What is promised of the first token cannot be kept. Who asks for no tokens, or for nonsense, is not counted."""
    met, missed = ('trivium_slo_requests_total{met="yes"}', 'trivium_slo_requests_total{met="no"}')
    before = check_identities(counted)
    for num_tokens in (1, 5, 5):
        body = {"model": MODEL, "messages": USER, "max_tokens": num_tokens, "ignore_eos": True}
        assert counted.post("/v1/chat/completions", body).status_code == 200
    assert counted.post("/v1/embeddings", {"model": MODEL, "input": "Hello"}).status_code == 200
    assert counted.post("/v1/completions", {"model": MODEL, "prompt": [99999999]}).status_code == 400
    after = check_identities(counted)
    assert (after[met] - before[met], after[missed] - before[missed]) == (0, 3)


def test_they_add_up_after_refusals_and_clients_that_left(counted: ServerProcess) -> None:
    before = check_identities(counted)
    for body in REFUSED:
        answer = counted.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
    outcomes = fault_traffic.send(counted, 1)
    assert [outcome.failure for outcome in outcomes] == [None] * len(outcomes)
    after = check_identities(counted)
    invalid, cancelled = (f'trivium_requests_ended_total{{end="{end}"}}' for end in ("invalid", "cancelled"))
    assert after[invalid] - before[invalid] == len(REFUSED)
    assert after[cancelled] - before[cancelled] <= 1, "who left, unless it was when all was written"


@pytest.mark.parametrize(
    "point",
    ["http.admit", "llm.collect", "sse.send", "client.delta", "client.receive", "runner.forward", "runner.logits"],
)
def test_they_add_up_after_a_fault(counted: ServerProcess, plan: FaultPlan, point: str) -> None:
    plan.arm({"point": point, "action": "nan" if point == "runner.logits" else "raise"})
    fault_traffic.send(counted, 100)
    wait_for(lambda: plan.fired() or None)
    plan.disarm()
    check_identities(counted)


def test_they_add_up_after_the_engine_was_killed(counted: ServerProcess, plan: FaultPlan) -> None:
    """What the server counts goes on; what the engine counts begins again."""
    check_identities(counted)
    plan.arm({"point": "core.commit"})
    fault_traffic.send(counted, 200)
    wait_for(lambda: plan.fired() or None)
    plan.disarm()
    wait_for(lambda: counted.get("/health").status_code == 200 or None)
    metrics = check_identities(counted)
    assert total(metrics, "trivium_engine_restarts_total") == 1
    assert any(account["end"] == "failed" for account in accounts(counted))
