"""Ollama's API: its official client, and the rules of its contract, over real HTTP."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import parrot_server
import pytest
from parrot_server import save_parrot, says
from server_process import ServerProcess, wait_for
from tiny_model import CONTEXT, MODEL

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 🙂"}}\n</tool_call>'
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture(scope="module")
def client(parrot: ServerProcess) -> ollama.Client:
    return ollama.Client(parrot.url, timeout=60)


@pytest.fixture
def with_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """A server with a store and records of its own."""
    monkeypatch.setenv("TRIVIUM_HOME", str(tmp_path / "store"))
    process = ServerProcess(str(save_parrot(tmp_path / "parrot")), program=(parrot_server.__file__,))
    yield process
    assert process.stop() == 0


def lines(server: ServerProcess, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    with httpx.stream("POST", server.url + path, json=asked, timeout=60) as response:
        text = response.read().decode()
    assert response.status_code == 200, text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def chat(server: ServerProcess, answer: str, **fields: Any) -> dict[str, Any]:
    response = server.post("/api/chat", {"model": "parrot", "messages": says(answer), "stream": False, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def said(answer: str) -> str:
    return says(answer)[0]["content"]


# --- the official client ----------------------------------------------------------------------------------------------


def test_the_client_chats_and_streams(client: ollama.Client) -> None:
    asked = {"model": "parrot", "messages": says("one two three")}
    whole = client.chat(**asked)
    pieces = list(client.chat(**asked, stream=True))
    assert whole.message.content == "one two three"
    assert "".join(piece.message.content or "" for piece in pieces) == "one two three"
    assert len(pieces) >= 2 and [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert whole.done_reason == pieces[-1].done_reason == "stop"
    assert whole.eval_count == pieces[-1].eval_count


def test_the_client_generates(client: ollama.Client) -> None:
    whole = client.generate("parrot", said("Hello."), system="Be brief.")
    assert whole.response == "Hello." and whole.context
    pieces = list(client.generate("parrot", said("Hello."), stream=True))
    assert "".join(piece.response for piece in pieces) == "Hello."


def test_the_client_gets_calls_and_thinking(client: ollama.Client) -> None:
    answer = client.chat("parrot", says(f"<think>Hm.</think>Well.\n{CALL}"), tools=[WEATHER])
    assert (answer.message.thinking, answer.message.content) == ("Hm.", "Well.")
    (call,) = answer.message.tool_calls or ()
    assert call.function.name == "get_weather" and call.function.arguments == {"city": "Zürich 🙂"}


def test_the_client_gets_what_its_schema_asks_for(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"size": {"enum": ["small", "large"]}}, "required": ["size"]}
    schema["additionalProperties"] = False
    client = ollama.Client(server.url, timeout=60)
    answer = client.chat(MODEL, [{"role": "user", "content": "How large?"}], format=schema)
    assert json.loads(answer.message.content or "")["size"] in ("small", "large")
    text = client.generate(MODEL, "How large?", format=schema).response
    assert json.loads(text)["size"] in ("small", "large")


def test_the_client_lists_shows_and_asks_what_runs(client: ollama.Client) -> None:
    assert "parrot:latest" in [model.model for model in client.list().models]
    shown = client.show("parrot")
    assert shown.modelinfo is not None and "tools" in (shown.capabilities or ())
    assert "<|im_start|>" in (shown.template or "")
    (running,) = client.ps().models
    assert (running.model, running.context_length) == ("parrot:latest", 4096)


def test_the_client_makes_copies_and_deletes_variants(with_store: ServerProcess) -> None:
    client = ollama.Client(with_store.url, timeout=60)
    made = client.create("mario", from_="parrot", system="You are Mario.", parameters={"num_predict": 3}, stream=True)
    assert [progress.status for progress in made][-1] == "success"
    client.copy("mario", "luigi:latest")
    assert {model.model for model in client.list().models} == {"parrot:latest", "mario:latest", "luigi:latest"}
    cut = client.chat("luigi", says("one two three"))
    assert (cut.done_reason, cut.eval_count) == ("length", 3)
    free = client.chat("luigi", says("one two three"), options={"num_predict": -1})
    assert free.message.content == "one two three"
    shown = client.show("mario")
    assert "You are Mario." in (shown.modelfile or "") and "num_predict 3" in (shown.parameters or "")
    client.delete("mario")
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("mario", says("x"))
    assert caught.value.status_code == 404
    assert client.chat("luigi", says("x")).message.content == "x"


def test_a_variants_system_prompt_reaches_the_model(with_store: ServerProcess) -> None:
    client = ollama.Client(with_store.url, timeout=60)
    client.create("polite", from_="parrot", system="Always be polite.")
    question = says("ok")
    plain = client.chat("parrot", question).prompt_eval_count
    polite = client.chat("polite", question).prompt_eval_count
    written_out = client.chat("parrot", [{"role": "system", "content": "Always be polite."}, *question])
    own = client.chat("polite", [{"role": "system", "content": "No."}, *question]).prompt_eval_count
    assert polite == written_out.prompt_eval_count > (plain or 0)
    assert own == client.chat("parrot", [{"role": "system", "content": "No."}, *question]).prompt_eval_count


def test_the_client_pulls_and_is_told_how_far_it_is(with_store: ServerProcess) -> None:
    """The default model, from where the machine gets its packages."""
    client = ollama.Client(with_store.url, timeout=120)
    progress = list(client.pull("smollm2", stream=True))
    assert progress[0].status == "pulling manifest" and progress[-1].status == "success"
    downloads = [step for step in progress if step.total]
    assert downloads and all((step.completed or 0) <= step.total for step in downloads)
    (listed,) = [model for model in client.list().models if model.model == "smollm2:latest"]
    assert listed.details is not None and listed.details.quantization_level == "Q4_1"
    assert listed.size == 98_362_432
    assert client.show("smollm2").modelinfo["llama.context_length"] == 8192  # type: ignore[index]
    client.delete("smollm2")
    assert "smollm2:latest" not in [model.model for model in client.list().models]


# --- the contract -----------------------------------------------------------------------------------------------------


def test_o1_streams_are_the_default_and_are_lines(parrot: ServerProcess) -> None:
    *pieces, last = lines(parrot, "/api/chat", {"model": "parrot", "messages": says("one two")})
    assert all(piece["done"] is False for piece in pieces) and last["done"] is True
    *pieces, last = lines(parrot, "/api/generate", {"model": "parrot", "prompt": said("one two")})
    assert "".join(piece["response"] for piece in pieces) == "one two" and last["done"] is True


def test_o1_a_body_sent_by_curl_is_read_but_not_one_sent_by_a_page(parrot: ServerProcess) -> None:
    data = json.dumps({"model": "parrot", "messages": says("hi"), "stream": False})
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert parrot.post("/api/chat", content=data, headers=form).json()["message"]["content"] == "hi"
    for origin, status in ((parrot.url, 415), ("http://elsewhere.example", 403)):
        refused = parrot.post("/api/chat", content=data, headers={**form, "origin": origin})
        assert refused.status_code == status


def test_o2_the_last_line_measures_in_nanoseconds_and_never_0(parrot: ServerProcess) -> None:
    for path, asked in (
        ("/api/chat", {"messages": says("one two")}),
        ("/api/generate", {"prompt": said("one two")}),
    ):
        *pieces, last = lines(parrot, path, {"model": "parrot", **asked})
        assert last["done_reason"] == "stop"
        assert all(type(last[name]) is int and last[name] > 0 for name in DURATIONS)
        assert last["prompt_eval_count"] > 0 and last["eval_count"] == len("one two") + 1
        for line in (*pieces, last):
            assert line["model"] == "parrot" and line["created_at"].endswith("Z") and "." in line["created_at"]
        assert (last["context"] if path == "/api/generate" else last["message"]["content"] == "") is not False


def test_o2_a_context_is_gone_on_from(parrot: ServerProcess) -> None:
    asked = {"model": "parrot", "stream": False}
    first = parrot.post("/api/generate", {**asked, "prompt": said("one")}).json()
    second = parrot.post("/api/generate", {**asked, "prompt": said("two"), "context": first["context"]}).json()
    assert second["response"] == "two"
    assert second["context"][: len(first["context"])] == first["context"]
    assert second["prompt_eval_count"] > len(first["context"])
    assert parrot.post("/api/generate", {**asked, "prompt": "x", "context": [10**6]}).status_code == 400


@pytest.mark.parametrize(("path", "empty"), [("/api/chat", {"messages": []}), ("/api/generate", {})])
def test_o3_o4_an_empty_request_loads_or_unloads(parrot: ServerProcess, path: str, empty: dict[str, Any]) -> None:
    asked = {"model": "parrot", **empty}
    loaded = parrot.post(path, {**asked, "keep_alive": "5m"}).json()
    assert (loaded["done"], loaded["done_reason"]) == (True, "load")
    assert parrot.post(path, {**asked, "keep_alive": -1}).json()["done_reason"] == "load"
    assert parrot.post(path, {**asked, "keep_alive": 0}).json()["done_reason"] == "unload"


def test_o5_calls_come_whole_in_a_line_before_the_last(parrot: ServerProcess) -> None:
    *pieces, last = lines(parrot, "/api/chat", {"model": "parrot", "messages": says(CALL), "tools": [WEATHER]})
    (made,) = [piece["message"]["tool_calls"] for piece in pieces if "tool_calls" in piece["message"]]
    (call,) = made
    assert call["function"] == {"name": "get_weather", "arguments": {"city": "Zürich 🙂"}, "index": 0}
    assert last["done_reason"] == "stop" and "tool_calls" not in last["message"]
    assert not any(piece["message"]["content"] for piece in pieces)


def test_o5_calls_and_results_go_back_into_the_prompt(parrot: ServerProcess) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    messages = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": "", "thinking": "Ask.", "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
        *says("It is sunny."),
    ]
    with_all = chat(parrot, "", messages=messages)
    without = chat(parrot, "", messages=[messages[0], messages[3]])
    assert with_all["message"]["content"] == "It is sunny."
    assert with_all["prompt_eval_count"] > without["prompt_eval_count"] + len("get_weather Rome sunny Ask.")


def test_o6_thinking_is_told_apart_and_refused_where_there_is_none(tmp_path: Path, parrot: ServerProcess) -> None:
    *pieces, _ = lines(parrot, "/api/generate", {"model": "parrot", "prompt": said("Hm.</think>Yes."), "think": True})
    assert "".join(piece.get("thinking", "") for piece in pieces) == "Hm."
    assert "".join(piece["response"] for piece in pieces) == "Yes."
    assert chat(parrot, "Yes.", think=False)["message"] == {"content": "Yes.", "role": "assistant"}
    assert parrot.post("/api/chat", {"model": "parrot", "messages": says("x"), "think": "madly"}).status_code == 400
    mute = ServerProcess(
        str(save_parrot(tmp_path / "mute")), "--reasoning-parser", "none", program=(parrot_server.__file__,)
    )
    try:
        refused = mute.post("/api/chat", {"model": "mute", "messages": says("x"), "think": True})
        assert refused.status_code == 400 and refused.json() == {"error": '"mute" does not support thinking'}
        assert mute.post("/api/chat", {"model": "mute", "messages": says("x"), "think": False}).status_code == 200
    finally:
        mute.stop()


def test_o7_options_are_obeyed_and_unknown_ones_are_said(parrot: ServerProcess) -> None:
    assert chat(parrot, "one two", options={"num_predict": 2})["done_reason"] == "length"
    assert chat(parrot, "one two", options={"stop": ["two"], "num_ctx": 999})["message"]["content"] == "one "
    assert chat(parrot, "one", options={"novelty_option": 1, "seed": 3.0, "top_k": 0})["message"]["content"] == "one"
    wait_for(lambda: "novelty_option" in parrot.log or None)
    assert "num_ctx" not in parrot.log
    refused = parrot.post("/api/chat", {"model": "parrot", "messages": says("x"), "options": {"temperature": 9}})
    assert refused.status_code == 400 and "options.temperature" in refused.json()["error"]


def test_o7_raw_text_goes_on_as_it_is(parrot: ServerProcess) -> None:
    asked = {"model": "parrot", "prompt": said("<think>so</think>"), "raw": True, "stream": False}
    answer = parrot.post("/api/generate", asked).json()
    assert answer["response"] == "<think>so</think>" and "context" not in answer
    assert answer["prompt_eval_count"] == len("<think>so</think>") + 2


@pytest.mark.parametrize(
    "fields", [{"template": "{{ .Prompt }}"}, {"images": ["aGk="]}, {"format": "yaml"}, {"prompt": 3}]
)
def test_o7_what_cannot_be_honoured_is_refused(parrot: ServerProcess, fields: dict[str, Any]) -> None:
    refused = parrot.post("/api/generate", {"model": "parrot", "prompt": said("x"), **fields})
    assert refused.status_code == 400 and next(iter(fields)) in refused.json()["error"]


def test_o7_json_is_json(server: ServerProcess) -> None:
    options = {"num_predict": 400, "temperature": 0.0}
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "JSON?"}], "format": "json", "stream": False}
    answer = server.post("/api/chat", {**asked, "options": options}).json()
    if answer["done_reason"] == "stop":
        assert isinstance(json.loads(answer["message"]["content"]), dict)
    assert answer["message"]["content"].lstrip().startswith("{")


def test_o8_errors_are_strings(parrot: ServerProcess, client: ollama.Client) -> None:
    unknown = parrot.post("/api/chat", {"model": "nobody", "messages": says("x")})
    assert (unknown.status_code, unknown.json()) == (404, {"error": "model 'nobody' not found"})
    assert parrot.post("/api/chat", content=b"{").status_code == 400
    assert isinstance(parrot.post("/api/chat", content=b"{").json()["error"], str)
    assert isinstance(parrot.get("/api/nothing").json()["error"], str)
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate("nobody", "x")
    assert caught.value.status_code == 404


def test_o8_a_prompt_that_does_not_fit_is_refused_before_the_stream(server: ServerProcess) -> None:
    refused = server.post("/api/generate", {"model": MODEL, "prompt": "z" * (CONTEXT * 4)})
    assert refused.status_code == 400 and str(CONTEXT) in refused.json()["error"]


def test_o9_names_carry_a_tag_and_answer_with_and_without(server: ServerProcess) -> None:
    (listed,) = [m for m in server.get("/api/tags").json()["models"] if m["name"] == f"{MODEL}:latest"]
    assert listed["model"] == listed["name"] and listed["size"] > 0 and len(listed["digest"]) == 64
    assert set(listed["details"]) >= {"format", "family", "families", "parameter_size", "quantization_level"}
    for name in (MODEL, f"{MODEL}:latest"):
        asked = {"model": name, "prompt": "x", "stream": False, "options": {"num_predict": 1}}
        assert server.post("/api/generate", asked).json()["model"] == name
    shown = server.post("/api/show", {"name": MODEL}).json()
    assert shown["model_info"]["general.architecture"] == shown["details"]["family"]
    assert shown["capabilities"][0] == "completion"
    assert server.get("/api/version").json()["version"].count(".") == 2
    (running,) = server.get("/api/ps").json()["models"]
    assert running["expires_at"] > "2100" and running["size_vram"] == 0 and running["context_length"] == CONTEXT


def test_o10_a_modelfile_makes_a_model(with_store: ServerProcess) -> None:
    modelfile = '# a variant\nFROM parrot\nPARAMETER num_predict 2\nPARAMETER stop "a"\nSYSTEM """\nBe\nbrief.\n"""\n'
    made = lines(with_store, "/api/create", {"model": "brief", "modelfile": modelfile})
    assert made[-1] == {"status": "success"}
    shown = with_store.post("/api/show", {"model": "brief"}).json()
    assert shown["system"] == "\nBe\nbrief.\n" and 'stop "a"' in shown["parameters"]
    assert shown["details"]["parent_model"] == "parrot"
    whole = with_store.post("/api/create", {"model": "briefer", "from": "brief", "stream": False})
    assert whole.json() == {"status": "success"}
    assert with_store.post("/api/show", {"model": "briefer"}).json()["system"] == "\nBe\nbrief.\n"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"from": "nobody"}, 404),
        ({}, 400),
        ({"from": "parrot", "template": "x"}, 400),
        ({"from": "parrot", "adapters": {"a": "sha256:0"}}, 400),
        ({"from": "parrot", "quantize": "q4_K_M"}, 400),
        ({"files": {"a.gguf": "sha256:0"}}, 400),
        ({"modelfile": "FROM /etc/passwd"}, 404),
        ({"modelfile": "SYSTEM x"}, 400),
        ({"modelfile": 'FROM parrot\nSYSTEM """x'}, 400),
        ({"model": "../x", "from": "parrot"}, 400),
        ({"model": "parrot", "from": "parrot"}, 400),
    ],
)
def test_o10_what_no_model_can_be_made_of_is_refused(
    parrot: ServerProcess, fields: dict[str, Any], status: int
) -> None:
    refused = parrot.post("/api/create", {"model": "new", **fields})
    assert refused.status_code == status and isinstance(refused.json()["error"], str)


def test_o10_deleting_and_copying_what_is_not_there_is_404(parrot: ServerProcess) -> None:
    missing = httpx.request("DELETE", f"{parrot.url}/api/delete", json={"model": "nobody"}, timeout=60)
    assert missing.status_code == 404
    assert parrot.post("/api/copy", {"source": "nobody", "destination": "x"}).status_code == 404
    served = httpx.request("DELETE", f"{parrot.url}/api/delete", json={"model": "parrot"}, timeout=60)
    assert served.status_code == 400 and "served" in served.json()["error"]


@pytest.mark.parametrize("name", ["nobody", "/etc", "../parrot", "./x", "org/../x"])
def test_o10_a_pull_takes_no_paths(parrot: ServerProcess, name: str) -> None:
    assert parrot.post("/api/pull", {"model": name}).status_code in (400, 404)


def test_log_probabilities_come_with_their_tokens(parrot: ServerProcess) -> None:
    asked = {"model": "parrot", "messages": says("ab"), "logprobs": True, "top_logprobs": 1}
    *pieces, _ = lines(parrot, "/api/chat", asked)
    told = [entry for piece in pieces for entry in piece.get("logprobs", [])]
    assert [entry["token"] for entry in told] == ["a", "b", "<|im_end|>"]
    assert told[0]["top_logprobs"][0]["token"] == "a"
    whole = chat(parrot, "ab", logprobs=True)
    assert [entry["logprob"] for entry in whole["logprobs"]] == [entry["logprob"] for entry in told]


def test_a_client_that_leaves_gives_back_what_its_answer_held(server: ServerProcess) -> None:
    asked = {"model": MODEL, "prompt": "Go on.", "options": {"num_predict": 4000}}
    with httpx.stream("POST", f"{server.url}/api/generate", json=asked, timeout=60) as response:
        next(response.iter_lines())
    server.wait_until_idle()


def test_the_client_creates_a_model_from_files_it_sends(tiny_model: Path, tmp_path: Path) -> None:
    process = ServerProcess(str(tiny_model), environment={"TRIVIUM_HOME": str(tmp_path)})
    try:
        client = ollama.Client(process.url)
        files = {path.name: client.create_blob(path) for path in tiny_model.iterdir() if path.is_file()}
        assert client.create("made", files=files).status == "success"
        assert "made:latest" in [model.model for model in client.list().models]
        assert client.generate("made", "Hello", options={"num_predict": 3}).done
        with pytest.raises(ollama.ResponseError, match="exists"):
            client.create("made", files=files)
        with pytest.raises(ollama.ResponseError, match="system cannot come with files"):
            client.create("other", files=files, system="Be brief.")
    finally:
        assert process.stop() == 0


def test_blobs_are_what_their_digests_say(with_store: ServerProcess) -> None:
    url, right = f"{with_store.url}/api/blobs/sha256:", hashlib.sha256(b"bytes").hexdigest()
    assert httpx.head(url + right, timeout=60).status_code == 404
    wrong = httpx.post(url + right, content=b"other bytes", timeout=60)
    assert wrong.status_code == 400 and "digest mismatch" in wrong.json()["error"]
    assert httpx.head(url + right, timeout=60).status_code == 404
    assert httpx.post(url + right, content=b"bytes", timeout=60).status_code == 201
    assert httpx.head(url + right, timeout=60).status_code == 200
    assert httpx.post(url + "x", content=b"bytes", timeout=60).status_code == 400
    for files in ({"a.gguf": f"sha256:{right}"}, {"../a.gguf": f"sha256:{right}"}, {"..": f"sha256:{right}"}):
        assert with_store.post("/api/create", {"model": "broken", "files": files}).status_code == 400
    missing = {"a.gguf": "sha256:" + "0" * 64}
    assert with_store.post("/api/create", {"model": "broken", "files": missing}).status_code == 404
