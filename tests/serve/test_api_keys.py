"""API keys: who is let in, in which words the others are refused, and what each key allows."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from openai.types import Batch
from server_process import ServerProcess, wait_for
from tiny_model import ENDLESS, MODEL

from trivium.serve.access.gate import OPEN_FOLDER, OPEN_PATHS
from trivium.serve.app import routes

CHAT = "/v1/chat/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "ignore_eos": True}
# More than a block of tokens, so that there is something to find in the cache.
LONG_ASK = {**ASK, "messages": [{"role": "user", "content": "All that was ever said of the sea, and more. " * 8}]}

KEYS = f"""
[[key]]
name = "alice"
key = "alice-secret"
admin = true

[[key]]
name = "bob"
sha256 = "{hashlib.sha256(b"bob-secret").hexdigest()}"
priority = 10

[[key]]
name = "dave"
key = "dave-secret"

[[key]]
name = "three"
key = "three-secret"
requests_per_minute = 3

[[key]]
name = "few"
key = "few-secret"
requests_per_minute = 3

[[key]]
name = "short"
key = "short-secret"
tokens_per_minute = 40

[[key]]
name = "single"
key = "single-secret"
concurrent_requests = 1

[[key]]
name = "nightly"
key = "nightly-secret"
tokens_per_minute = 10

[[key]]
name = "elsewhere"
key = "elsewhere-secret"
models = ["another-model"]
"""
SECRETS = ("flag-secret", "environment-secret", "alice-secret", "bob-secret", "few-secret", "short-secret")


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-secret"}


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(KEYS)
    return path


@pytest.fixture(scope="module")
def locked(endless_model: Path, key_file: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(
        str(endless_model),
        *("--served-model-name", MODEL, "--dtype", "float32", "--kv-cache-dtype", "float32", "--max-num-seqs", "2"),
        *("--api-key", "flag-secret", "--api-key-file", str(key_file)),
        environment={"TRIVIUM_API_KEY": "environment-secret"},
        headers=bearer("alice"),
    )
    yield process
    assert process.stop() == 0
    assert not [secret for secret in SECRETS if secret in process.log]
    assert "Traceback" not in process.log


@pytest.mark.parametrize("key", ["flag", "environment", "alice", "bob"])
@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
def test_e12_every_key_opens_in_every_clients_header(locked: ServerProcess, key: str, header: str) -> None:
    value = bearer(key)["authorization"] if header == "authorization" else f"{key}-secret"
    assert locked.get("/v1/models", headers={header: value}).status_code == 200


def every_path(ids: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """`ids` stand for the path parameters that they are named after."""
    names = ids or {}
    known = [
        (method, re.sub(r"\{(\w+)[^}]*\}", lambda found: names.get(found[1], "x"), route.path))
        for route in routes(None).routes  # type: ignore[arg-type]
        for method in sorted(route.methods)  # type: ignore[attr-defined]
    ]
    unknown = [("GET", "/nothing"), ("POST", "/v1/nothing"), ("GET", "/api/nothing"), ("DELETE", "/health")]
    tricks = [("GET", "//metrics"), ("GET", "/v1//models/"), ("GET", "/page"), ("POST", "/"), ("OPTIONS", "/v1/models")]
    return [*known, *unknown, *tricks]


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic alice-secret"}])
def test_e12_without_a_key_every_path_known_or_not_is_refused(locked: ServerProcess, headers: dict[str, str]) -> None:
    with httpx.Client(timeout=60) as client:
        answers = {
            (method, path): client.request(method, locked.url + path, headers=headers)
            for method, path in every_path()
            if not (is_open(path) and method in ("GET", "HEAD"))
        }
    assert {key: answer.status_code for key, answer in answers.items() if answer.status_code != 401} == {}
    for answer in answers.values():
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-request-id"]


def test_health_and_the_page_need_no_key(locked: ServerProcess) -> None:
    assert httpx.get(locked.url + "/health", timeout=60).status_code == 200
    page = httpx.get(locked.url, headers={"accept": "text/html"}, timeout=60)
    assert page.status_code == 200
    files = set(re.findall(r'(?:src|href)="(/page/[^"]+)"', page.text))
    assert files and {httpx.get(locked.url + file, timeout=60).status_code for file in files} == {200}


def test_e12_a_refusal_is_in_the_words_of_the_clients_language(locked: ServerProcess) -> None:
    with pytest.raises(openai.AuthenticationError) as by_openai:
        locked.openai().models.list()
    assert (by_openai.value.type, by_openai.value.code) == ("authentication_error", "invalid_api_key")
    assert by_openai.value.request_id
    speaker = anthropic.Anthropic(base_url=locked.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError) as by_anthropic:
        speaker.messages.create(model=MODEL, max_tokens=2, messages=[{"role": "user", "content": "Hello"}])
    assert by_anthropic.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    with pytest.raises(ollama.ResponseError) as by_ollama:
        ollama.Client(host=locked.url).list()
    assert by_ollama.value.status_code == 401
    assert "API key" in by_ollama.value.error


def test_the_official_clients_come_in_with_their_key(locked: ServerProcess) -> None:
    assert openai.OpenAI(base_url=f"{locked.url}/v1", api_key="bob-secret").models.list().data[0].id == MODEL
    speaker = anthropic.Anthropic(base_url=locked.url, api_key="bob-secret")
    said = speaker.messages.create(model=MODEL, max_tokens=2, messages=[{"role": "user", "content": "Hello"}])
    assert said.usage.output_tokens > 0
    assert ollama.Client(host=locked.url, headers=bearer("bob")).list().models


def test_no_key_is_seen_in_the_engines_arguments_or_environment(locked: ServerProcess) -> None:
    engine = Path(f"/proc/{locked.engine_pid}")
    seen = (engine / "cmdline").read_bytes() + (engine / "environ").read_bytes()
    assert not [secret for secret in SECRETS if secret.encode() in seen]


def test_a_key_that_is_not_for_a_model_is_told_so(locked: ServerProcess) -> None:
    asks: list[tuple[str, dict[str, Any]]] = [
        (CHAT, ASK),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/embeddings", {"input": "Hello"}),
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/messages", {"model": MODEL, "max_tokens": 2, "messages": ASK["messages"]}),
        ("/api/chat", {"model": MODEL, "messages": ASK["messages"]}),
        ("/api/generate", {"model": MODEL, "prompt": "Hello"}),
        ("/api/embed", {"model": MODEL, "input": "Hello"}),
        ("/tokenize", {"prompt": "Hello"}),
    ]
    statuses = {path: locked.post(path, body, headers=bearer("elsewhere")).status_code for path, body in asks}
    assert set(statuses.values()) == {403}, statuses
    for path, key in (("/v1/models", "data"), ("/api/tags", "models"), ("/api/ps", "models")):
        assert locked.get(path, headers=bearer("elsewhere")).json()[key] == []
        assert locked.get(path, headers=bearer("bob")).json()[key]


def test_only_admins_change_the_models(locked: ServerProcess) -> None:
    unloading = {"model": MODEL, "keep_alive": 0}
    assert locked.post("/api/generate", unloading, headers=bearer("bob")).status_code == 403
    assert locked.post("/api/generate", unloading, headers=bearer("alice")).status_code == 200
    copying = {"source": MODEL, "destination": "theirs"}
    refused = locked.post("/api/copy", copying, headers=bearer("bob"))
    assert (refused.status_code, type(refused.json()["error"])) == (403, str)
    assert locked.post("/api/pull", {"model": "x"}, headers=bearer("bob")).status_code == 403
    assert (
        httpx.request(
            "DELETE", locked.url + "/api/delete", json={"model": "x"}, headers=bearer("bob"), timeout=60
        ).status_code
        == 403
    )
    assert locked.post("/api/copy", copying, headers=bearer("alice")).status_code == 200


# Limits


def test_e8_requests_beyond_the_rate_are_told_when_there_is_room(locked: ServerProcess) -> None:
    answers = [locked.post(CHAT, ASK, headers=bearer("three")) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    for answer in answers:
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert "x-ratelimit-limit-tokens" not in answer.headers
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0"]
    last = answers[-1]
    assert (last.json()["error"]["type"], last.json()["error"]["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert 0 < int(last.headers["retry-after-ms"]) <= 20_000  # three a minute: one every 20 s
    assert 1 <= int(last.headers["retry-after"]) <= 20
    assert re.fullmatch(r"(\d+m)?[\d.]+s", last.headers["x-ratelimit-reset-requests"])
    assert locked.get("/v1/models", headers=bearer("three")).status_code == 200  # to look around costs nothing


def test_e8_a_limited_key_is_told_so_in_every_language(locked: ServerProcess) -> None:
    while locked.post(CHAT, ASK, headers=bearer("few")).status_code == 200:
        pass
    ask = {"model": MODEL, "max_tokens": 2, "messages": ASK["messages"]}
    by_anthropic = locked.post("/v1/messages", ask, headers=bearer("few"))
    assert (by_anthropic.status_code, by_anthropic.json()["error"]["type"]) == (429, "rate_limit_error")
    by_ollama = locked.post("/api/chat", ask, headers=bearer("few"))
    assert (by_ollama.status_code, type(by_ollama.json()["error"])) == (429, str)
    assert by_anthropic.headers["retry-after"] and by_ollama.headers["retry-after"]


def test_tokens_of_prompts_and_answers_are_counted_and_what_was_overdrawn_is_waited_for(locked: ServerProcess) -> None:
    first = locked.post(CHAT, {**ASK, "max_tokens": 100}, headers=bearer("short"))
    assert first.status_code == 200
    used = first.json()["usage"]["total_tokens"]
    refused = locked.post(CHAT, ASK, headers=bearer("short"))
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    # 40 a minute: what is beyond the first 40 has to come back, at 1.5 s for each, but for the time that has passed.
    assert (used - 40) * 1000 < int(refused.headers["retry-after-ms"]) <= (used - 39) * 1500


def test_a_key_has_only_so_many_requests_at_once(locked: ServerProcess) -> None:
    endless = {**ASK, "max_tokens": ENDLESS, "stream": True}
    with httpx.stream("POST", locked.url + CHAT, json=endless, headers=bearer("single"), timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        refused = locked.post(CHAT, ASK, headers=bearer("single"))
        assert refused.status_code == 429
        assert "1 requests at once" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after-ms"]) > 0
        assert locked.post(CHAT, ASK, headers=bearer("bob")).status_code == 200
    locked.wait_until_idle()
    assert locked.post(CHAT, ASK, headers=bearer("single")).status_code == 200


def test_a_keys_priority_decides_who_runs_first_and_a_request_cannot_raise_it(locked: ServerProcess) -> None:
    """Two endless streams fill the server. Who waits longest is not who comes first when one of them goes."""
    locked.wait_until_idle()
    endless = {**ASK, "max_tokens": ENDLESS, "stream": True}

    def ask(key: str, max_tokens: int) -> None:
        body = {**ASK, "max_tokens": max_tokens, "priority": -100}
        headers = {**bearer(key), "x-request-id": f"first-{key}"}
        assert locked.post(CHAT, body, headers=headers).status_code == 200

    def first_token(key: str) -> float:
        """Seconds since 1970, as the server saw it."""
        account = locked.get(f"/v1/requests/first-{key}").json()["account"]
        return account["received"] + account["time_to_first_token"]

    with (
        ThreadPoolExecutor() as pool,
        httpx.Client(base_url=locked.url, headers=bearer("alice"), timeout=60) as client,
        client.stream("POST", CHAT, json=endless) as first,
        client.stream("POST", CHAT, json=endless) as second,
    ):
        lines = [stream.iter_lines() for stream in (first, second)]
        for stream in lines:
            next(stream)
        asked = []
        for number, (key, max_tokens) in enumerate((("bob", 1000), ("dave", 1)), 1):
            asked.append(pool.submit(ask, key, max_tokens))
            wait_for(lambda number=number: locked.metrics()["trivium_waiting_sequences"] == number or None)
        first.close()
        for answer in asked:
            answer.result()
    locked.wait_until_idle()
    assert first_token("dave") < first_token("bob")


def test_only_admins_see_the_sequences_and_prefixes_of_others(locked: ServerProcess) -> None:
    locked.post(CHAT, {**ASK, "messages": [{"role": "user", "content": "Look at me, or rather do not. " * 8}]})
    shown = {key: locked.get("/v1/engine", headers=bearer(key)).json()["live"] for key in ("alice", "bob")}
    assert shown["alice"]["prefixes"] and not shown["bob"]["prefixes"]
    assert not shown["bob"]["sequences"]
    assert shown["alice"]["totals"]["prompt_tokens"] == shown["bob"]["totals"]["prompt_tokens"] > 0


def test_what_is_made_in_the_background_takes_a_place_until_it_ends(locked: ServerProcess) -> None:
    body = {"model": MODEL, "input": "Hello", "background": True, "ignore_eos": True, "max_output_tokens": ENDLESS}
    made = locked.post("/v1/responses", body, headers=bearer("single")).json()["id"]
    assert locked.post(CHAT, ASK, headers=bearer("single")).status_code == 429
    assert locked.post(f"/v1/responses/{made}/cancel", headers=bearer("single")).status_code == 200
    assert locked.post(CHAT, ASK, headers=bearer("single")).status_code == 200


# Prefixes


def cached_tokens(server: ServerProcess, key: str, path: str = CHAT, **more: Any) -> int:
    answer = server.post(path, {**LONG_ASK, **more}, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    if "cache_read_input_tokens" in usage:
        return usage["cache_read_input_tokens"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_a_prefix_cached_by_one_key_is_never_found_by_another(locked: ServerProcess) -> None:
    asked = {"messages": [{"role": "user", "content": "Whose was it first, and who may know of it? " * 8}]}
    assert cached_tokens(locked, "alice", **asked) == 0
    found = cached_tokens(locked, "alice", **asked)
    assert found > 0
    assert cached_tokens(locked, "bob", **asked) == 0
    assert cached_tokens(locked, "bob", **asked) == found
    assert cached_tokens(locked, "flag", **asked) == 0
    # Nor with a salt that would make a caller look like another.
    assert cached_tokens(locked, "environment", **asked, cache_salt="alice") == 0
    assert cached_tokens(locked, "environment", **asked, cache_salt="alice\0") == 0


def test_a_salt_of_the_request_parts_the_prefixes_of_one_key(locked: ServerProcess) -> None:
    salted = {"messages": [{"role": "user", "content": "Salt, and what it keeps from rotting. " * 8}]}
    assert cached_tokens(locked, "bob", **salted, cache_salt="one") == 0
    assert cached_tokens(locked, "bob", **salted, cache_salt="two") == 0
    assert cached_tokens(locked, "bob", **salted, cache_salt="one") > 0


def test_other_languages_have_their_callers_prefixes_too(locked: ServerProcess) -> None:
    asked = {"messages": [{"role": "user", "content": "Every tongue has its own word for rain. " * 8}]}
    assert cached_tokens(locked, "bob", "/v1/messages", **asked) == 0
    assert cached_tokens(locked, "flag", "/v1/messages", **asked) == 0
    assert cached_tokens(locked, "bob", "/v1/messages", **asked) > 0
    assert cached_tokens(locked, "flag", **asked) > 0


def test_prefixes_are_shared_where_the_switch_says_so(tiny_model: Path) -> None:
    keys = ("--api-key", "alice-secret", "--api-key", "bob-secret", "--share-prefixes", "--open-metrics")
    server = ServerProcess(str(tiny_model), "--served-model-name", MODEL, *keys)
    try:
        assert cached_tokens(server, "alice") == 0
        assert cached_tokens(server, "bob") > 0
        assert server.wait_until_idle()  # reads /metrics without a key
        assert server.get("/v1/models").status_code == 401
    finally:
        assert server.stop() == 0


# What is kept for callers


def owned_by(server: ServerProcess, key: str, asked: dict[str, Any]) -> dict[str, str]:
    """One of each thing that a caller can leave here, by the path parameter that names it."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=f"{key}-secret")
    line = json.dumps({"custom_id": "1", "method": "POST", "url": CHAT, "body": {**LONG_ASK, **asked}})
    file = client.files.create(file=("requests.jsonl", line.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    response = client.responses.create(model=MODEL, input="Hello", max_output_tokens=2)
    conversation = client.conversations.create(items=[{"role": "user", "content": "I am Bob."}])
    return {
        "file_id": file.id,
        "batch_id": batch.id,
        "response_id": response.id,
        "conversation_id": conversation.id,
        "item_id": client.conversations.items.list(conversation.id).data[0].id,
    }


def test_what_one_key_leaves_here_does_not_exist_for_another(locked: ServerProcess) -> None:
    mine = owned_by(locked, "bob", {})
    body = {"metadata": {}, "items": [{"role": "user", "content": "I am Dave."}]}
    paths = [(method, path) for method, path in every_path(mine) if any(id in path for id in mine.values())]
    assert len(paths) >= 15
    with httpx.Client(headers=bearer("dave"), timeout=60) as dave:
        answers = {
            (method, path): dave.request(method, locked.url + path, json=body if method == "POST" else None).status_code
            for method, path in paths
        }
        assert {key: status for key, status in answers.items() if status != 404} == {}
        for path in ("/v1/files", "/v1/batches"):
            assert dave.get(locked.url + path).json()["data"] == []
            assert dave.get(locked.url + path, params={"after": mine["file_id"]}).status_code == 400
        for more in (
            {"previous_response_id": mine["response_id"]},
            {"conversation": mine["conversation_id"]},
            {"input": [{"type": "item_reference", "id": mine["item_id"]}]},
        ):
            refused = dave.post(f"{locked.url}/v1/responses", json={"model": MODEL, "input": "Hello", **more})
            assert refused.status_code in (400, 404), refused.text
        batch = {"input_file_id": mine["file_id"], "endpoint": CHAT, "completion_window": "24h"}
        assert dave.post(f"{locked.url}/v1/batches", json=batch).status_code == 404
    for key in ("bob", "alice"):  # its owner, and an admin
        for path in (f"/v1/files/{mine['file_id']}", f"/v1/responses/{mine['response_id']}"):
            assert locked.get(path, headers=bearer(key)).status_code == 200


def test_a_response_that_is_being_made_is_its_owners_too(locked: ServerProcess) -> None:
    body = {"model": MODEL, "input": "Hello", "background": True, "ignore_eos": True, "max_output_tokens": ENDLESS}
    made = locked.post("/v1/responses", body, headers=bearer("bob")).json()["id"]
    for key, status in (("dave", 404), ("bob", 200)):
        assert locked.get(f"/v1/responses/{made}", headers=bearer(key)).status_code == status
        assert locked.post(f"/v1/responses/{made}/cancel", headers=bearer(key)).status_code == status


def test_a_batch_runs_as_its_owner(locked: ServerProcess) -> None:
    asked = {"messages": [{"role": "user", "content": "Done in the night, while nobody looks. " * 8}]}
    batch = owned_by(locked, "bob", asked)["batch_id"]

    def ended() -> dict[str, Any] | None:
        now = locked.get(f"/v1/batches/{batch}", headers=bearer("bob")).json()
        return now if now["status"] == "completed" else None

    output = wait_for(ended)["output_file_id"]
    assert locked.get(f"/v1/files/{output}/content", headers=bearer("bob")).status_code == 200
    assert locked.get(f"/v1/files/{output}/content", headers=bearer("dave")).status_code == 404
    assert cached_tokens(locked, "dave", **asked) == 0
    assert cached_tokens(locked, "bob", **asked) > 0


def test_a_batch_uses_up_its_owners_tokens(locked: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{locked.url}/v1", api_key="nightly-secret")
    lines = [
        {"custom_id": str(number), "method": "POST", "url": CHAT, "body": {**ASK, "max_tokens": 500}}
        for number in range(3)
    ]
    file = client.files.create(file=("requests.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed or None)
    refused = locked.post(CHAT, ASK, headers=bearer("nightly"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    # Ten a minute: what is beyond them takes most of an hour to come back, and the batch's next request waits for it.
    assert client.batches.cancel(batch.id).status == "cancelling"
    ended = wait_for(lambda: _if_ended(client.batches.retrieve(batch.id)))
    assert ended.request_counts.completed == 1


def _if_ended(batch: Batch) -> Batch | None:
    return batch if batch.status == "cancelled" else None


# The file is read again


def test_sighup_reads_the_keys_again_and_a_broken_file_changes_nothing(locked: ServerProcess, key_file: Path) -> None:
    def status(key: str) -> int:
        return locked.get("/v1/models", headers=bearer(key)).status_code

    def reloaded(text: str, told: str) -> None:
        before = locked.log.count(told)
        key_file.write_text(text)
        os.kill(locked.process.pid, signal.SIGHUP)
        wait_for(lambda: locked.log.count(told) > before or None)

    without_bob = KEYS.replace('"bob"', '"carol"').replace(hashlib.sha256(b"bob-secret").hexdigest(), "0" * 64)
    reloaded(without_bob + '[[key]]\nname = "new"\nkey = "new-secret"\n', "read again: keys")
    assert [status(key) for key in ("bob", "new", "alice", "flag")] == [401, 200, 200, 200]
    reloaded("[[key]]\nname = 3\n", "not read again")
    assert [status(key) for key in ("bob", "new", "alice", "flag")] == [401, 200, 200, 200]
    # What was used up is not given back by reading the file again.
    while locked.post(CHAT, ASK, headers=bearer("few")).status_code == 200:
        pass
    reloaded(KEYS, "read again: keys")
    assert status("bob") == 200
    assert locked.post(CHAT, ASK, headers=bearer("few")).status_code == 429


def test_a_key_that_is_set_but_empty_does_not_open_the_server(tiny_model: Path) -> None:
    with pytest.raises(AssertionError, match=r"TRIVIUM_API_KEY.*not empty"):
        ServerProcess(str(tiny_model), environment={"TRIVIUM_API_KEY": ""})


def test_keys_are_not_needed_where_none_is_set(server: ServerProcess) -> None:
    assert server.get("/v1/models", headers={"authorization": "Bearer whatever"}).status_code == 200
    assert json.loads(server.get("/v1/models").content)["data"]
