"""Several models in one server: loaded when they are asked for, let go when they are not, within a memory budget.

Every model is an engine process of its own: a test that says a model is in memory or is not looks for its process.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from server_process import ServerProcess, children_of, standing_still, wait_for
from wire import connection, request_bytes

from trivium.serve.models.sizes import PROCESS_BYTES
from trivium.store import ModelStore

KV_BYTES = 4 << 20  # of each engine
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
OPTIONS = ("--dtype", "float32", "--kv-cache-bytes", str(KV_BYTES), "--models-on-demand", "all")


def budget_for(tiny_model: Path, count: int) -> str:
    """Bytes for so many tiny models, and not one more."""
    size = sum(file.stat().st_size for file in tiny_model.iterdir())  # a little more than the weights alone
    return str(count * (PROCESS_BYTES + KV_BYTES + size) + (1 << 20))


@pytest.fixture(scope="module")
def home(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A store with three models that work, and one that does not."""
    root = tmp_path_factory.mktemp("home")
    store = ModelStore(root)
    for name in ("ant", "bee", "cat"):
        store.pull(str(tiny_model), name=name)
    broken = tmp_path_factory.mktemp("models") / "broken"
    shutil.copytree(tiny_model, broken)
    store.pull(str(broken), name="broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 3}))
    return {"TRIVIUM_HOME": str(root)}


@pytest.fixture(scope="module")
def server(tiny_model: Path, home: dict[str, str]) -> Iterator[ServerProcess]:
    """One model stays; there is room for two of the others."""
    process = ServerProcess(
        f"house={tiny_model}",
        *OPTIONS,
        "--memory-budget",
        budget_for(tiny_model, 3),
        "--limit",
        "model_wait_seconds=5",
        environment=home,
    )
    yield process
    log = process.log
    assert process.stop() == 0
    assert "Traceback" not in log, log


@pytest.fixture
def alone(server: ServerProcess) -> None:
    """The test begins with the model that stays, and no other."""
    for name in loaded(server) - {"house"}:
        unload(server, name)
    wait_for(lambda: loaded(server) == {"house"} or None)


def ask(server: ServerProcess, model: str | None, **fields: Any) -> httpx.Response:
    return server.post(CHAT, {"model": model, "messages": USER, "max_tokens": 3, "ignore_eos": True, **fields})


def unload(server: ServerProcess, model: str) -> httpx.Response:
    return server.post("/api/generate", {"model": model, "keep_alive": 0})


@contextmanager
def busy(server: ServerProcess, model: str) -> Iterator[httpx.Response]:
    """With a request under way that takes long and ends with its connection: each answer takes all of the KV cache."""
    body = {"model": model, "messages": USER, "max_tokens": 7000, "n": 16, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=60) as response:
        assert response.status_code == 200
        yield response


def running(server: ServerProcess) -> dict[str, dict[str, Any]]:
    models = server.get("/api/ps").json()["models"]
    return {model["name"].removesuffix(":latest"): model for model in models}


def loaded(server: ServerProcess) -> set[str]:
    return set(running(server))


def engines(server: ServerProcess) -> set[int]:
    """Processes."""
    return children_of(server.process.pid)


def engine_of(server: ServerProcess, model: str) -> int:
    """Of a model that is asked for now, for the first time."""
    before = engines(server)
    assert ask(server, model).status_code == 200
    (pid,) = engines(server) - before
    return pid


def gone(*pids: int) -> bool | None:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids) or None


@pytest.mark.usefixtures("alone")
def test_a_model_in_the_store_is_loaded_by_the_first_request_for_it(server: ServerProcess) -> None:
    before = engines(server)
    answer = ask(server, "ant")
    assert answer.status_code == 200
    assert answer.json()["model"] == "ant"
    assert loaded(server) == {"house", "ant"}
    assert len(engines(server) - before) == 1
    assert ask(server, None).json()["model"] == "house"
    assert ask(server, "ant", stream=True).status_code == 200
    assert len(engines(server) - before) == 1


def test_models_are_listed_with_those_that_are_loaded(server: ServerProcess) -> None:
    assert ask(server, "bee").status_code == 200
    listed = {model["id"]: model["loaded"] for model in server.get("/v1/models").json()["data"]}
    assert next(iter(listed)) == "house"
    assert {name for name, is_loaded in listed.items() if is_loaded} == loaded(server) >= {"house", "bee"}
    assert set(listed) == {"house", "ant", "bee", "broken", "cat"}
    assert server.get("/v1/models/cat").json()["max_model_len"] > 0
    assert server.get("/v1/models/dog").status_code == 404
    anthropic = server.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert {model["id"] for model in anthropic["data"]} == set(listed)
    assert {model["name"] for model in server.get("/api/tags").json()["models"]} == {
        f"{name}:latest" for name in listed
    }


@pytest.mark.parametrize(
    ("path", "body", "shape"),
    [
        (CHAT, {"messages": USER}, lambda body: body["error"]["code"] == "model_not_found"),
        ("/v1/messages", {"messages": USER, "max_tokens": 1}, lambda body: body["error"]["type"] == "not_found_error"),
        ("/api/chat", {"messages": USER}, lambda body: "not found" in body["error"]),
        ("/v1/embeddings", {"input": "x"}, lambda body: body["error"]["code"] == "model_not_found"),
    ],
)
def test_an_unknown_model_is_a_404_in_the_words_of_the_front_end(
    server: ServerProcess, path: str, body: dict[str, Any], shape: Any
) -> None:
    for name in ("dog", "../ant", "/etc/passwd", "ant:other"):
        answer = server.post(path, {**body, "model": name})
        assert answer.status_code == 404, answer.text
        assert shape(answer.json())


def test_every_front_end_can_ask_for_a_model_in_the_store(server: ServerProcess) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 16}),
        ("/v1/messages", {"messages": USER, "max_tokens": 1}),
        ("/v1/embeddings", {"input": "a"}),
        ("/api/chat", {"messages": USER, "stream": False, "options": {"num_predict": 1}}),
        ("/api/embed", {"input": "a"}),
        ("/tokenize", {"prompt": "a"}),
    ):
        answer = server.post(path, {**body, "model": "ant"})
        assert answer.status_code == 200, (path, answer.text)
    assert "ant" in loaded(server)


@pytest.mark.usefixtures("alone")
def test_first_requests_at_once_share_one_load(server: ServerProcess) -> None:
    before = engines(server)

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"model": "ant", "messages": USER, "max_tokens": 2}
            return await asyncio.gather(*(client.post(server.url + CHAT, json=body) for _ in range(6)))

    assert [answer.status_code for answer in asyncio.run(together())] == [200] * 6
    assert len(engines(server) - before) == 1


@pytest.mark.usefixtures("alone")
def test_who_leaves_while_a_model_is_loaded_does_not_end_the_load_for_others(server: ServerProcess) -> None:
    before = engines(server)
    with ThreadPoolExecutor() as pool:
        with connection(server) as leaver:
            leaver.sendall(request_bytes(CHAT, {"model": "ant", "messages": USER, "max_tokens": 2}))
            wait_for(lambda: engines(server) - before or None)
            stayer = pool.submit(ask, server, "ant")
        assert stayer.result().status_code == 200
    assert len(engines(server) - before) == 1


@pytest.mark.usefixtures("alone")
def test_a_load_that_fails_tells_all_who_wait_why_and_leaves_nothing(server: ServerProcess) -> None:
    before = engines(server)

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"model": "broken", "messages": USER}
            return await asyncio.gather(*(client.post(server.url + CHAT, json=body) for _ in range(3)))

    for answer in asyncio.run(together()):
        assert answer.status_code == 500, answer.text
        assert answer.json()["error"]["code"] == "model_load_failed"
        assert "broken" in answer.json()["error"]["message"]
    assert loaded(server) == {"house"}
    assert engines(server) == before
    assert ask(server, "ant").status_code == 200


@pytest.mark.usefixtures("alone")
def test_the_model_used_longest_ago_makes_room(server: ServerProcess) -> None:
    ant, bee = engine_of(server, "ant"), engine_of(server, "bee")
    assert ask(server, "ant").status_code == 200  # bee is now the one used longest ago
    assert ask(server, "cat").status_code == 200
    assert loaded(server) == {"house", "ant", "cat"}
    assert gone(bee)
    assert not gone(ant)


@pytest.mark.usefixtures("alone")
def test_a_model_in_use_stays_and_another_is_refused_with_the_numbers_or_waits_until_one_is_idle(
    server: ServerProcess,
) -> None:
    ant, bee = engine_of(server, "ant"), engine_of(server, "bee")
    with ThreadPoolExecutor() as pool, busy(server, "ant") as one, busy(server, "bee"):
        with standing_still(ant), standing_still(bee):
            refused = ask(server, "cat")
        assert refused.status_code == 503, refused.text
        error = refused.json()["error"]
        assert error["code"] == "no_room_for_model"
        assert all(word in error["message"] for word in ("'cat'", "MiB", "ant", "bee"))
        assert int(refused.headers["retry-after"]) >= 1
        assert loaded(server) == {"house", "ant", "bee"}
        waiting = pool.submit(ask, server, "cat")
        one.close()
        assert waiting.result().status_code == 200
        assert loaded(server) == {"house", "bee", "cat"}


@pytest.mark.usefixtures("alone")
def test_ollamas_client_loads_lists_and_unloads(server: ServerProcess) -> None:
    client = ollama.Client(host=server.url)
    before = engines(server)
    assert client.generate(model="ant", keep_alive="10m").done_reason == "load"
    (pid,) = engines(server) - before
    listed = {model.model: model for model in client.ps().models}
    assert set(listed) == {"house:latest", "ant:latest"}
    left = listed["ant:latest"].expires_at - datetime.now(UTC)
    assert timedelta(minutes=9) < left <= timedelta(minutes=10)
    assert listed["house:latest"].expires_at - datetime.now(UTC) > timedelta(days=3650)
    assert listed["ant:latest"].size > PROCESS_BYTES
    assert client.generate(model="ant", keep_alive=0).done_reason == "unload"
    assert loaded(server) == {"house"}
    assert gone(pid)
    assert client.chat(model="house", messages=[], keep_alive=0).done_reason == "unload"
    assert loaded(server) == {"house"}  # what was named on the command line stays


@pytest.mark.usefixtures("alone")
def test_a_model_goes_when_its_time_is_over(server: ServerProcess) -> None:
    body = {"model": "ant", "prompt": "a", "stream": False, "options": {"num_predict": 1}}
    assert server.post("/api/generate", {**body, "keep_alive": "1s"}).status_code == 200
    wait_for(lambda: loaded(server) == {"house"} or None)
    assert server.post("/api/generate", {**body, "keep_alive": -1}).status_code == 200
    assert datetime.fromisoformat(running(server)["ant"]["expires_at"]) - datetime.now(UTC) > timedelta(days=3650)
    assert server.post("/api/generate", {**body, "keep_alive": 0}).json()["done"] is True
    wait_for(lambda: loaded(server) == {"house"} or None)
    refused = server.post("/api/generate", {**body, "keep_alive": "soon"})
    assert refused.status_code == 400
    assert "keep_alive" in refused.json()["error"]


@pytest.mark.usefixtures("alone")
def test_an_engine_that_is_killed_leaves_the_others_and_comes_back_when_it_is_asked_for(server: ServerProcess) -> None:
    ant = engine_of(server, "ant")
    with busy(server, "ant") as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(ant, signal.SIGKILL)
        *_, error, done = [line for line in lines if line.startswith("data: ")]
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_dead"
    assert server.get("/health").status_code == 200
    assert ask(server, "house").status_code == 200
    wait_for(lambda: loaded(server) == {"house"} or None)
    assert ask(server, "ant").status_code == 200
    assert loaded(server) == {"house", "ant"}


def test_engines_numbers_are_told_by_the_name_of_their_model(server: ServerProcess) -> None:
    assert ask(server, "ant").status_code == 200
    metrics = server.get("/metrics").text
    for name in ("house", "ant"):
        assert f'trivium_engine_steps_total{{model_name="{name}"}}' in metrics
        assert f'trivium_kv_blocks{{model_name="{name}",state="held"}} 0.0' in metrics
    unload(server, "ant")
    metrics = server.get("/metrics").text
    assert 'trivium_engine_steps_total{model_name="ant"}' not in metrics
    assert 'trivium_generated_tokens_total{model_name="ant"}' in metrics, "what the server counted stays counted"


@pytest.mark.usefixtures("alone")
def test_a_model_that_is_deleted_goes_from_memory_but_not_while_it_is_in_use(
    server: ServerProcess, home: dict[str, str], tiny_model: Path
) -> None:
    ModelStore(home["TRIVIUM_HOME"]).pull(str(tiny_model), name="elk")

    def delete(name: str) -> int:
        return httpx.request("DELETE", f"{server.url}/api/delete", json={"model": name}, timeout=60).status_code

    assert delete("house") == 400
    with busy(server, "elk"):
        assert delete("elk") == 400
    wait_for(lambda: delete("elk") == 200 or None)
    assert loaded(server) == {"house"}
    assert ask(server, "elk").status_code == 404


def test_a_copy_is_answered_by_the_model_it_was_made_of(server: ServerProcess) -> None:
    assert server.post("/api/copy", {"source": "ant", "destination": "ant-copy"}).status_code == 200
    body = {"model": "ant-copy", "messages": USER, "stream": False, "options": {"num_predict": 1}}
    assert server.post("/api/chat", body).status_code == 200
    assert "ant" in loaded(server) and "ant-copy" not in loaded(server)  # a copy has no weights of its own


def test_what_a_model_can_do_is_told_before_it_is_loaded(server: ServerProcess) -> None:
    unload(server, "ant")
    before = server.post("/api/show", {"model": "ant"}).json()
    assert "completion" in before["capabilities"] and "<|im_start|>" in before["template"]
    assert "ant" not in loaded(server)
    assert ask(server, "ant").status_code == 200
    assert server.post("/api/show", {"model": "ant"}).json() == before


@pytest.mark.usefixtures("alone")
def test_a_background_response_keeps_its_model(server: ServerProcess) -> None:
    body = {"model": "ant", "input": "a", "background": True, "max_output_tokens": 600}
    made = server.post("/v1/responses", body)
    assert made.status_code == 200
    unload(server, "ant")  # goes when nobody uses it any more

    def ended() -> str | None:
        status: str = server.get(f"/v1/responses/{made.json()['id']}").json()["status"]
        return status if status not in ("queued", "in_progress") else None

    assert wait_for(ended) in ("completed", "incomplete")
    wait_for(lambda: loaded(server) == {"house"} or None)


@pytest.mark.usefixtures("alone")
def test_the_live_view_is_of_the_model_that_is_named(server: ServerProcess) -> None:
    def view(query: str) -> Any:
        return server.get(f"/v1/engine{query}").json()

    assert view("")["model"]["name"] == view("?model=house")["model"]["name"] == "house"
    assert (view("?model=ant")["state"], view("?model=ant")["live"]) == ("unloaded", None)
    assert server.post(CHAT, {"model": "ant", "messages": USER, "max_tokens": 5, "ignore_eos": True}).status_code == 200
    ant = view("?model=ant")
    assert (ant["state"], ant["model"]["name"], ant["live"]["totals"]["generated_tokens"]) == ("ready", "ant", 5)
    assert server.get("/v1/engine?model=nobody").status_code == 404


def test_a_model_that_could_never_fit_is_refused_with_the_numbers(tiny_model: Path, home: dict[str, str]) -> None:
    tight = ServerProcess(
        f"house={tiny_model}", *OPTIONS, "--memory-budget", budget_for(tiny_model, 1), environment=home
    )
    try:
        refused = ask(tight, "ant")
        assert refused.status_code == 507, refused.text
        assert refused.json()["error"]["code"] == "model_too_large"
        assert all(word in refused.json()["error"]["message"] for word in ("'ant'", "MiB of weights", "KV cache"))
        assert "retry-after" not in refused.headers
        assert tight.post("/api/chat", {"model": "ant", "messages": USER}).status_code == 507
        assert ask(tight, None).status_code == 200
    finally:
        tight.stop()


def test_models_of_the_command_line_are_loaded_at_the_start_and_stay(tiny_model: Path, home: dict[str, str]) -> None:
    both = ServerProcess(
        f"one={tiny_model}",
        *OPTIONS,
        "--models-on-demand",
        "none",
        more_models=(f"two={tiny_model}",),
        environment=home,
    )
    try:
        assert loaded(both) == {"one", "two"}
        assert [ask(both, name).json()["model"] for name in ("one", "two", None)] == ["one", "two", "one"]
        assert both.post("/api/chat", {"model": "ant", "messages": USER}).status_code == 404
        assert [model["id"] for model in both.get("/v1/models").json()["data"]] == ["one", "two"]
        first = engines(both)
        os.kill(min(first), signal.SIGKILL)
        (coming,) = wait_for(lambda: engines(both) - first or None)
        with standing_still(coming):
            assert both.get("/health").status_code == 503
            assert 200 in [ask(both, name).status_code for name in ("one", "two")]
        wait_for(lambda: both.get("/health").status_code == 200 or None)
        assert [ask(both, name).status_code for name in ("one", "two")] == [200, 200]
        assert len(engines(both) - first) == 1
    finally:
        assert both.stop() == 0


def test_models_that_do_not_fit_together_are_refused_at_the_start(tiny_model: Path) -> None:
    names = [f"one={tiny_model}", f"two={tiny_model}"]
    command = [sys.executable, "-m", "trivium", "serve", *names, "--port", "0", "--memory-budget", "300M"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1
    assert all(word in refused.stderr for word in ("2 models need", "one ", "two ", "300 MiB"))
    assert "Traceback" not in refused.stderr
    twice = subprocess.run([*command[:4], "one", "two", "--served-model-name", "x"], capture_output=True, text=True)
    assert twice.returncode == 2 and "NAME=MODEL" in twice.stderr
