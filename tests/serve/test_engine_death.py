"""Streams of other front ends than OpenAI's when the engine dies under them: each ends with an error in its own form."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import pytest
from server_process import ServerProcess, wait_for
from tiny_model import ENDLESS, LONG_CONTEXT, MODEL, save_tiny_model

USER: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def talker(tmp_path: Path) -> Iterator[ServerProcess]:
    """Its model has no token that ends an answer."""
    directory = save_tiny_model(tmp_path / "tiny", LONG_CONTEXT)
    for name, keys in (
        ("config.json", ("eos_token_id",)),
        ("generation_config.json", ("eos_token_id",)),
        ("tokenizer_config.json", ("eos_token",)),
    ):
        values = json.loads((directory / name).read_text())
        kept = {key: value for key, value in values.items() if key not in keys}
        (directory / name).write_text(json.dumps(kept))
    process = ServerProcess(str(directory), "--served-model-name", MODEL)
    yield process
    process.stop()


def test_an_engine_that_dies_ends_every_stream_with_an_error_of_its_kind(talker: ServerProcess) -> None:
    def ask_anthropic() -> anthropic.APIError:
        client = anthropic.Anthropic(base_url=talker.url, api_key="none", max_retries=0, timeout=60)
        stream = client.messages.create(model=MODEL, max_tokens=ENDLESS, messages=USER, stream=True)
        with pytest.raises(anthropic.APIError) as caught:
            for _ in stream:
                pass
        return caught.value

    def ask_ollama() -> ollama.ResponseError:
        client = ollama.Client(talker.url, timeout=60)
        options = {"num_predict": ENDLESS}
        with pytest.raises(ollama.ResponseError) as caught:
            for _ in client.chat(MODEL, USER, stream=True, options=options):
                pass
        return caught.value

    def events_of_messages() -> list[str]:
        body = {"model": MODEL, "max_tokens": ENDLESS, "messages": USER, "stream": True}
        with httpx.stream("POST", f"{talker.url}/v1/messages", json=body, timeout=60) as got:
            return [line for line in got.iter_lines() if line]

    engine = talker.engine_pid
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(ask) for ask in (ask_anthropic, ask_ollama, events_of_messages)]
        wait_for(lambda: talker.metrics()["trivium_running_sequences"] == 3 or None)
        wait_for(lambda: talker.metrics()["trivium_generated_tokens_total"] > 30 or None)
        os.kill(engine, signal.SIGKILL)
        of_anthropic, of_ollama, events = (answer.result() for answer in answers)
    assert "engine" in str(of_anthropic) and "engine" in of_ollama.error
    assert events[-2] == "event: error", "nothing comes after the error, and no message_stop before it"
    told = json.loads(events[-1].removeprefix("data: "))
    assert told["type"] == "error" and told["error"]["type"] in ("api_error", "overloaded_error")
    assert not any("message_stop" in line for line in events)
    wait_for(lambda: talker.get("/health").status_code == 200 or None)
    metrics = talker.wait_until_idle()
    assert metrics['trivium_requests_ended_total{end="failed"}'] == 3
