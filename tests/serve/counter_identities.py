"""What must hold between the counters of an idle server, whatever was asked of it and whatever went wrong."""

from __future__ import annotations

from typing import Any

import pytest
from server_process import ServerProcess

ALL = 1000  # accounts that are told at once


def total(metrics: dict[str, float], name: str) -> float:
    """Over all labels."""
    return sum(value for sample, value in metrics.items() if sample.partition("{")[0] == name)


def accounts(server: ServerProcess) -> list[dict[str, Any]]:
    """Of all requests so far, which must be less than are told at once."""
    told: list[dict[str, Any]] = server.get(f"/v1/requests?limit={ALL}").json()["data"]
    assert len(told) < ALL
    return told


def check_identities(server: ServerProcess) -> dict[str, float]:
    """Returns the metrics."""
    metrics = server.wait_until_idle()
    told = accounts(server)
    ended = "trivium_requests_ended_total"
    assert metrics["trivium_requests_received_total"] == total(metrics, ended) == len(told)
    for end in ("complete", "invalid", "overloaded", "failed", "cancelled"):
        assert metrics[f'{ended}{{end="{end}"}}'] == sum(account["end"] == end for account in told), end
    assert metrics["trivium_request_seconds_count"] == metrics[f'{ended}{{end="complete"}}']
    generated = [account.get("num_generated_tokens", 0) for account in told]
    assert metrics["trivium_generated_tokens_total"] == sum(generated)
    seconds = sum(account["seconds"] for account in told)
    assert total(metrics, "trivium_request_cause_seconds_total") == pytest.approx(seconds, rel=1e-6)
    engine_seconds = sum(account.get("engine_seconds", 0.0) for account in told)
    assert metrics["trivium_request_engine_seconds_total"] == pytest.approx(engine_seconds, rel=1e-6)

    # Handed to clients: no more than was there.
    handed = metrics["trivium_inter_token_seconds_count"] + metrics["trivium_time_to_first_token_seconds_count"]
    assert handed <= metrics["trivium_generated_tokens_total"]
    waits = sum(account["time_to_first_token"] for account in told if "time_to_first_token" in account)
    assert metrics["trivium_time_to_first_token_seconds_sum"] >= waits - 1e-6, (
        "a request with several prompts has several"
    )

    # The engine, since its process began.
    blocks = {state: metrics[f'trivium_kv_blocks{{state="{state}"}}'] for state in ("free", "held", "cached")}
    taken, freed = metrics["trivium_kv_blocks_taken_total"], metrics["trivium_kv_blocks_freed_total"]
    assert blocks["held"] == 0 and taken - freed == blocks["cached"]
    steps = metrics["trivium_replayed_steps_total"] + total(metrics, "trivium_eager_steps_total")
    assert steps <= metrics["trivium_engine_steps_total"]
    return metrics
