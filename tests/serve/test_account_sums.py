"""Where a request's time went, for every kind of request and every kind of end: the causes sum to the wall time, and the engine
tells its part of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from counter_identities import accounts
from server_process import ServerProcess, wait_for
from test_request_accounts import check_sum
from tiny_model import ENDLESS, MODEL

USER = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"
FORM = {"type": "json_schema", "json_schema": {"name": "form", "schema": {"enum": ["alpha", "beta"]}}}
ON_AND_ON = {"messages": USER, "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}
WHOLE: dict[str, tuple[str, dict[str, Any], set[str]]] = {  # path, body, causes that it must have
    "chat": (CHAT, {"messages": USER, "max_tokens": 20, "ignore_eos": True}, {"prompt", "decode"}),
    "stream": (CHAT, {"messages": USER, "max_tokens": 20, "ignore_eos": True, "stream": True}, {"decode"}),
    "one token": (CHAT, {"messages": USER, "max_tokens": 1}, {"prompt"}),
    "completion": ("/v1/completions", {"prompt": "Hello", "max_tokens": 8, "ignore_eos": True}, {"decode"}),
    "prompts": ("/v1/completions", {"prompt": ["Hello", "you"] * 3, "max_tokens": 8, "ignore_eos": True}, {"prompt"}),
    "several": (CHAT, {"messages": USER, "max_tokens": 8, "n": 5, "ignore_eos": True}, {"decode"}),
    "grammar": (CHAT, {"messages": USER, "response_format": FORM, "max_tokens": 20}, {"grammar"}),
    "vectors": ("/v1/embeddings", {"input": ["Hello", "you"] * 100}, {"prompt", "own_texts"}),
    "scores": ("/v1/rerank", {"query": "Hello", "documents": ["you", "me"]}, {"prompt"}),
    "response": ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}, {"prompt"}),
    "message": ("/v1/messages", {"messages": USER, "max_tokens": 8}, {"prompt"}),
    "ollama": ("/api/chat", {"messages": USER, "options": {"num_predict": 8}}, {"prompt"}),
    "refused": (CHAT, {"messages": USER, "max_tokens": 10**6}, {"receiving"}),
    "no form": (CHAT, {"messages": USER, "structured_outputs": {"regex": "("}}, {"receiving"}),
}


@pytest.fixture(scope="module")
def narrow(endless_model: Path) -> Iterator[ServerProcess]:
    """Two sequences at a time; the later of many texts must wait for the earlier."""
    options = ("--served-model-name", MODEL, "--dtype", "float32", "--max-num-seqs", "2")
    process = ServerProcess(str(endless_model), *options)
    yield process
    told = accounts(process)
    assert process.stop() == 0
    for account in told:
        check_sum(account)


def ask(server: ServerProcess, path: str, body: dict[str, Any]) -> tuple[str, httpx.Response]:
    request_id = f"sum-{uuid.uuid4().hex}"
    return request_id, server.post(path, {"model": MODEL, **body}, headers={"X-Request-Id": request_id})


def account_of(server: ServerProcess, request_id: str) -> dict[str, Any]:
    """It is there once the engine has told its part, a moment after the answer."""

    def look() -> dict[str, Any] | None:
        found = server.get(f"/v1/requests/{request_id}")
        return found.json()["account"] if found.status_code == 200 else None

    account = wait_for(look)
    check_sum(account)
    return account


@pytest.mark.parametrize("kind", WHOLE)
def test_the_causes_of_a_request_sum_to_its_time(narrow: ServerProcess, kind: str) -> None:
    path, body, causes = WHOLE[kind]
    request_id, _ = ask(narrow, path, body)
    account = account_of(narrow, request_id)
    assert account["causes"].keys() >= causes
    assert "engine" not in account["causes"] or kind == "no form", "the engine has told how"


def test_a_stop_string_leaves_no_time_unexplained(narrow: ServerProcess) -> None:
    body = {"messages": USER, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    text = ask(narrow, CHAT, body)[1].json()["choices"][0]["message"]["content"]
    stopped = {**body, "stop": [text[len(text) // 2 :][:3]]}
    request_id, answer = ask(narrow, CHAT, {**stopped, "include_metrics": True})
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    for account in (answer.json()["metrics"], account_of(narrow, request_id)):
        check_sum(account)
        assert account["num_steps"] > 0 and "engine" not in account["causes"]
        assert account["num_generated_tokens"] == answer.json()["usage"]["completion_tokens"]


def test_a_client_that_leaves_has_an_account_too(narrow: ServerProcess) -> None:
    for _ in range(3):
        request_id = f"left-{uuid.uuid4().hex}"
        asked = {"model": MODEL, **ON_AND_ON}
        with httpx.stream(
            "POST", narrow.url + CHAT, json=asked, headers={"X-Request-Id": request_id}, timeout=60
        ) as answer:
            next(answer.iter_lines())
        account = account_of(narrow, request_id)
        assert account["end"] == "cancelled"
        assert account["causes"]["prompt"] > 0 and "engine" not in account["causes"]


def test_who_waited_or_gave_way_has_an_account_too(narrow: ServerProcess) -> None:
    """Two rows, both taken by others that may wait; who comes later goes before them, and one waits."""
    before = narrow.wait_until_idle()["trivium_preemptions_total"]
    ids = [f"low-{uuid.uuid4().hex}" for _ in range(2)]
    with httpx.Client(base_url=narrow.url, timeout=60) as http:
        streams, lines = [], []
        for request_id in ids:
            body = {"model": MODEL, "priority": 5, **ON_AND_ON}
            sent = http.build_request("POST", CHAT, json=body, headers={"X-Request-Id": request_id})
            streams.append(http.send(sent, stream=True))
            lines.append(streams[-1].iter_lines())
            next(lines[-1])
        urgent, answer = ask(narrow, CHAT, {"messages": USER, "max_tokens": 4, "n": 2, "ignore_eos": True})
        assert answer.status_code == 200
        for stream in streams:
            stream.close()
    assert narrow.wait_until_idle()["trivium_preemptions_total"] > before
    gave_way = [account_of(narrow, request_id) for request_id in ids]
    assert sum(account.get("num_preemptions", 0) for account in gave_way) > 0
    assert "engine" not in account_of(narrow, urgent)["causes"]


def test_lines_of_a_batch_and_responses_in_the_background_have_accounts_of_their_own(narrow: ServerProcess) -> None:
    known = {account["request_id"] for account in accounts(narrow)}
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body} for i in range(3)]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    kept = narrow.post("/v1/files", files={"file": ("lines.jsonl", data)}, data={"purpose": "batch"}).json()["id"]
    wish = {"input_file_id": kept, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = narrow.post("/v1/batches", wish).json()["id"]
    wait_for(lambda: narrow.get(f"/v1/batches/{batch}").json()["status"] == "completed" or None)
    asked = {"model": MODEL, "input": "Hello", "max_output_tokens": 16, "background": True}
    made = narrow.post("/v1/responses", asked).json()["id"]
    wait_for(lambda: narrow.get(f"/v1/responses/{made}").json()["status"] in ("completed", "incomplete") or None)
    narrow.wait_until_idle()
    new = [account for account in accounts(narrow) if account["request_id"] not in known]
    computed = [account for account in new if account.get("num_generated_tokens")]
    assert len(computed) == 4 and made in {account["request_id"] for account in computed}
    for account in computed:
        check_sum(account)
        assert account["causes"]["prompt"] > 0 and "engine" not in account["causes"]


def test_a_token_is_handed_on_after_the_request_came_and_before_its_last_byte(narrow: ServerProcess) -> None:
    request_id, _ = ask(narrow, CHAT, WHOLE["stream"][1])
    account = account_of(narrow, request_id)
    first, between = account["time_to_first_token"], account["inter_token_latency"]
    assert first > 0 and between > 0
    assert first + between * (account["num_generated_tokens"] - 1) <= account["seconds"]
