"""Health, metrics, overload, draining, and an engine that dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from server_process import PATIENCE, ServerProcess, children_of, standing_still, wait_for
from tiny_model import ENDLESS, MODEL
from wire import connection, request_bytes

USER = [{"role": "user", "content": "Hello"}]
ASK = {"model": MODEL, "messages": USER, "max_tokens": 4}
LONG = {**ASK, "max_tokens": ENDLESS, "ignore_eos": True}
PATH = "/v1/chat/completions"


def running(server: ServerProcess) -> bool | None:
    return server.metrics()["trivium_running_sequences"] > 0 or None


def test_health_is_ok_while_the_engine_answers(server: ServerProcess) -> None:
    answer = server.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_metrics_add_up(server: ServerProcess) -> None:
    before = server.wait_until_idle()
    assert server.post(PATH, {**ASK, "n": 2, "ignore_eos": True}).status_code == 200
    assert server.post(PATH, {**ASK, "temperature": 9}).status_code == 400
    # Long enough that the tokens cannot all come together.
    long = {"prompt": ["a", "b"], "stream": True, "max_tokens": 100, "ignore_eos": True}
    assert server.post("/v1/completions", long).status_code == 200
    after = server.wait_until_idle()

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("trivium_requests_received_total") == 3
    assert grown('trivium_requests_ended_total{end="complete"}') == 2
    assert grown('trivium_requests_ended_total{end="invalid"}') == 1
    ends = sum(value for name, value in after.items() if name.startswith("trivium_requests_ended_total"))
    assert after["trivium_requests_received_total"] == ends
    sequences = [name for name in after if name.startswith("trivium_sequences_ended_total")]
    assert sum(grown(name) for name in sequences) == 4
    assert grown("trivium_time_to_first_token_seconds_count") == 3
    assert grown("trivium_request_seconds_count") == 2
    assert grown("trivium_generated_tokens_total") == 2 * 4 + 2 * 100
    # No wait goes before a sequence's first tokens, of which there may be more than one when they come together.
    assert 0 < grown("trivium_inter_token_seconds_count") <= grown("trivium_generated_tokens_total") - 4
    assert grown("trivium_prompt_tokens_total") > 0
    assert grown("trivium_engine_steps_total") > 0
    blocks = [value for name, value in after.items() if name.startswith("trivium_kv_blocks{")]
    assert len(blocks) == 3 and sum(blocks) > 0


def test_e6_e8_a_full_queue_is_refused_with_a_time_to_wait(own_server: ServerProcess) -> None:
    async def flood() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            asks = [client.post(own_server.url + PATH, json={**LONG, "max_tokens": 400}) for _ in range(16)]
            return await asyncio.gather(*asks)

    answers = asyncio.run(flood())
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused and len(refused) < len(answers)
    for answer in refused:
        assert answer.status_code == 429
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert int(answer.headers["retry-after"]) >= 1
        assert int(answer.headers["retry-after-ms"]) >= 1
    assert own_server.wait_until_idle()['trivium_requests_ended_total{end="overloaded"}'] == len(refused)


def test_sigterm_lets_running_answers_end_and_takes_no_new_ones(own_server: ServerProcess) -> None:
    body = {**LONG, "max_tokens": 1000, "stream": True}
    with ThreadPoolExecutor() as pool:
        with standing_still(own_server.engine_pid):
            answer = pool.submit(own_server.post, PATH, body)
            wait_for(lambda: own_server.get("/health/progress").json()["has_work"] or None)
            own_server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: own_server.get("/health").status_code == 503 or None)
            refused = own_server.post(PATH, ASK)
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert refused.json()["error"]["code"] == "draining"
        data = [line for line in answer.result().text.splitlines() if line]
    assert data[-1] == "data: [DONE]"
    assert json.loads(data[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert own_server.process.wait(PATIENCE) == 0
    assert "Traceback" not in own_server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_at_once_and_leaves_nothing(own_server: ServerProcess, number: int) -> None:
    engine = own_server.engine_pid
    own_server.process.send_signal(number)
    assert own_server.process.wait(PATIENCE) == 0
    wait_for(lambda: not Path(f"/proc/{engine}").exists() or None)


def test_answers_that_outlast_the_drain_are_told_so(endless_model: Path) -> None:
    server = ServerProcess(str(endless_model), "--drain-seconds", "0.2")
    try:
        with httpx.stream(
            "POST", server.url + PATH, json={**LONG, "model": None, "stream": True}, timeout=60
        ) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            *_, error, done = [line for line in lines if line.startswith("data: ")]
        assert done == "data: [DONE]"
        assert json.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
        assert server.process.wait(PATIENCE) == 0
    finally:
        server.stop()


def test_a_second_signal_does_not_wait(own_server: ServerProcess) -> None:
    engine = own_server.engine_pid
    with connection(own_server) as sock:
        sock.sendall(request_bytes(PATH, {**LONG, "stream": True}))
        assert b"200 OK" in sock.recv(4096)
        own_server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: own_server.get("/health").status_code == 503 or None)
        own_server.process.send_signal(signal.SIGTERM)
        own_server.process.wait(PATIENCE)
    wait_for(lambda: not Path(f"/proc/{engine}").exists() or None)


def test_t7_an_engine_that_dies_ends_its_streams_with_a_typed_error_and_comes_back(own_server: ServerProcess) -> None:
    engine = own_server.engine_pid
    with own_server.openai() as client, ThreadPoolExecutor() as pool:
        stream = client.chat.completions.create(
            model=MODEL, messages=USER, max_tokens=ENDLESS, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        whole = pool.submit(own_server.post, PATH, LONG)
        wait_for(lambda: own_server.metrics()["trivium_running_sequences"] == 2 or None)
        os.kill(engine, signal.SIGKILL)
        with pytest.raises(openai.APIError) as caught:
            for _ in stream:
                pass
        assert caught.value.type == "server_error"
        assert caught.value.code == "engine_dead"
        answer = whole.result()
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert answer.json()["error"]["code"] == "engine_dead"
    wait_for(lambda: own_server.get("/health").status_code == 200 or None)
    assert own_server.engine_pid != engine
    assert own_server.post(PATH, ASK).status_code == 200
    metrics = own_server.wait_until_idle()
    assert metrics["trivium_engine_restarts_total"] == 1
    assert metrics['trivium_requests_ended_total{end="failed"}'] == 2


def test_e8_while_the_engine_comes_back_requests_are_told_to_wait(own_server: ServerProcess) -> None:
    killed = own_server.engine_pid
    os.kill(killed, signal.SIGKILL)
    (coming,) = wait_for(lambda: children_of(own_server.process.pid) - {killed} or None)
    with standing_still(coming):
        assert own_server.get("/health").status_code == 503
        answer = own_server.post(PATH, ASK)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
    wait_for(lambda: own_server.get("/health").status_code == 200 or None)
    assert own_server.post(PATH, ASK).status_code == 200


def test_a_server_that_is_killed_takes_its_engine_with_it(own_server: ServerProcess) -> None:
    engine = own_server.engine_pid
    own_server.process.kill()
    wait_for(lambda: not Path(f"/proc/{engine}").exists() or None)


def test_a_long_prompt_of_one_client_does_not_hold_up_the_health_of_all(server: ServerProcess) -> None:
    """A megabyte of text is refused for its length, but only once it is tokenized: in a thread."""
    body = {"prompt": "word " * 200_000}
    with ThreadPoolExecutor() as pool:
        slow = [pool.submit(server.post, "/v1/completions", body) for _ in range(2)]
        while not all(answer.done() for answer in slow):
            assert (
                server.get(
                    "/health",
                ).status_code
                == 200
            )
        assert {answer.result().status_code for answer in slow} == {400}


def test_a_port_in_use_is_one_sentence(server: ServerProcess, tiny_model: Path) -> None:
    command = [sys.executable, "-m", "trivium", "serve", str(tiny_model), "--port", str(server.port)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert (
        result.stderr
        == f"trivium: port {server.port} on 127.0.0.1 is in use by another program; choose one with --port\n"
    )


def test_the_start_report_names_model_kernels_and_address(server: ServerProcess) -> None:
    assert f"model     {MODEL}" in server.log
    (kernels,) = [line for line in server.log.splitlines() if line.startswith("kernels ") and "paged_attention" in line]
    assert "native" in kernels or "reference" in kernels
    assert f"curl {server.url}/v1/chat/completions" in server.log
    command = server.log[server.log.index("curl ") :].split("EOF")[0].strip()
    answer = subprocess.run(["bash", "-c", command.replace("curl ", "curl -sf ", 1)], capture_output=True, text=True)
    assert answer.stdout.endswith("data: [DONE]\n\n")


def test_any_model_name_is_served_where_the_switch_says_so(tiny_model: Path) -> None:
    server = ServerProcess(str(tiny_model), "--accept-any-model")
    try:
        answer = server.post(PATH, {**ASK, "model": "gpt-4o"})
        assert (answer.status_code, answer.json()["model"]) == (200, "gpt-4o")
    finally:
        assert server.stop() == 0


def test_with_overlap_the_answer_is_the_same_and_what_was_planned_ahead_is_counted(
    server: ServerProcess, tiny_model: Path
) -> None:
    ask = {**ASK, "max_tokens": 40, "temperature": 0.7, "seed": 5, "ignore_eos": True}
    same = ("--served-model-name", MODEL, "--dtype", "float32", "--kv-cache-dtype", "float32")
    ahead = ServerProcess(str(tiny_model), *same, "--overlap")
    try:
        answers = [where.post(PATH, ask).json()["choices"] for where in (server, ahead)]
        metrics = ahead.wait_until_idle()
    finally:
        assert ahead.stop() == 0
    assert answers[0] == answers[1]
    assert metrics["trivium_planned_ahead_total"] == 39
    assert metrics["trivium_discarded_total"] == 0


def test_steps_and_ops_that_ran_the_slow_way_are_counted_with_the_reason(
    server: ServerProcess, tiny_model: Path
) -> None:
    ask = {**ASK, "max_tokens": 8, "ignore_eos": True}
    before = server.wait_until_idle()
    assert server.post(PATH, {**ask, "typical_p": 0.9}).status_code == 200
    after = server.wait_until_idle()
    fallbacks = 'trivium_op_fallbacks_total{op="sample",reason="typical_p"}'
    assert after[fallbacks] - before.get(fallbacks, 0) == 8
    assert after["trivium_replayed_steps_total"] - before["trivium_replayed_steps_total"] == 8

    slow = ServerProcess(str(tiny_model), "--served-model-name", MODEL, "--kernels", "reference")
    try:
        assert slow.post(PATH, ask).status_code == 200
        metrics = slow.wait_until_idle()
    finally:
        assert slow.stop() == 0
    assert metrics['trivium_eager_steps_total{reason="these kernels have no graph mode"}'] == 8
    assert metrics["trivium_replayed_steps_total"] == 0
