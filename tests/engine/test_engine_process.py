"""Promises of the engine process alone, spoken to frame by frame."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
import zmq
from echo_client import ECHO_CORE, request
from echo_core import BAD_STEP, next_token
from msgspec.structs import replace

from trivium.config.options import EngineOptions
from trivium.engine.loop import EXIT_FAULT
from trivium.engine.messages import (
    Deltas,
    Drain,
    Drained,
    Fault,
    FromEngine,
    GetStats,
    Launch,
    Ready,
    Refused,
    Shutdown,
    StartFailed,
    Stats,
    decode_from_engine,
    encode,
)
from trivium.engine.process import EXIT_START_FAILED, without_collections
from trivium.types.delta import FinishReason
from trivium.types.request import Cancel

T = TypeVar("T")


class RawEngine:
    def __init__(self, directory: Path) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self._endpoint = f"ipc://{directory}/engine"
        self.socket.bind(self._endpoint)
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self, model: str = "echo") -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen([sys.executable, "-m", "trivium.engine.process"], stdin=subprocess.PIPE)
        launch = Launch(EngineOptions(model=model), self._endpoint, os.getpid(), ECHO_CORE)
        assert self.process.stdin is not None
        self.process.stdin.write(encode(launch))
        self.process.stdin.close()
        return self.process

    def receive(self) -> FromEngine:
        assert self.socket.poll(120_000), "the engine says nothing"
        message = decode_from_engine(self.socket.recv())
        assert message is not None
        return message

    def receive_until(self, kind: type[T]) -> T:
        while not isinstance(message := self.receive(), kind):
            pass
        return message

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._context.destroy(linger=0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RawEngine]:
    engine = RawEngine(tmp_path)
    yield engine
    engine.close()


def test_malformed_frames_are_counted_and_dropped_and_the_engine_lives_on(engine: RawEngine) -> None:
    engine.launch()
    engine.receive_until(Ready)
    for frame in (b"", b"\xc1", b"not a message", Random(0).randbytes(1000), encode(Deltas([]))):
        engine.socket.send(frame)
    engine.socket.send(encode(request("r", max_tokens=3)))
    tokens: list[int] = []
    while len(tokens) < 3:
        for delta in engine.receive_until(Deltas).deltas:
            tokens += delta.tokens
    assert tokens == [next_token("r", 0, position) for position in (3, 4, 5)]
    engine.socket.send(encode(GetStats(ticket=7)))
    while (stats := engine.receive_until(Stats)).ticket != 7:
        pass
    assert stats.malformed_frames == 5


def test_an_idle_engine_gives_signs_of_life_with_its_progress(engine: RawEngine) -> None:
    engine.launch()
    first, second = engine.receive_until(Stats), engine.receive_until(Stats)
    assert second.last_turn > first.last_turn
    assert second.last_step == first.last_step
    assert second.num_steps == 0


def test_drain_refuses_new_requests_finishes_those_in_hand_and_ends_with_code_0(engine: RawEngine) -> None:
    process = engine.launch()
    engine.receive_until(Ready)
    engine.socket.send(encode(request("old", max_tokens=50)))
    engine.socket.send(encode(Drain()))
    engine.socket.send(encode(request("new")))
    refused = engine.receive_until(Refused)
    assert (refused.request_id, refused.error.kind) == ("new", "OverloadedError")
    reason = None
    while reason is None:
        reason = engine.receive_until(Deltas).deltas[-1].finish_reason
    assert reason is FinishReason.LENGTH
    engine.receive_until(Drained)
    engine.socket.send(encode(Shutdown()))
    assert process.wait(120) == 0


def test_sigterm_drains(engine: RawEngine) -> None:
    process = engine.launch()
    engine.receive_until(Ready)
    engine.socket.send(encode(request("r", max_tokens=200)))
    engine.receive_until(Deltas)
    process.send_signal(signal.SIGTERM)
    num_tokens = 0
    while not isinstance(message := engine.receive(), Drained):
        num_tokens += sum(len(delta.tokens) for delta in message.deltas) if isinstance(message, Deltas) else 0
    assert num_tokens >= 198  # all but those that came before the signal
    engine.socket.send(encode(Shutdown()))
    assert process.wait(120) == 0


def test_ctrl_c_of_the_terminal_is_left_to_the_parent(engine: RawEngine) -> None:
    process = engine.launch()
    engine.receive_until(Ready)
    process.send_signal(signal.SIGINT)
    engine.receive_until(Stats)
    engine.socket.send(encode(request("r", max_tokens=1)))
    engine.receive_until(Deltas)


def test_a_step_that_fails_is_told_and_the_process_ends_with_an_error(
    engine: RawEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    process = engine.launch()
    engine.socket.send(encode(request("r", prompt=(BAD_STEP,))))
    assert "the device is on fire" in engine.receive_until(Fault).message
    engine.socket.send(encode(Shutdown()))
    assert process.wait(120) == EXIT_FAULT
    assert "Traceback" in capfd.readouterr().err


def test_a_model_that_cannot_be_loaded_is_one_sentence_without_a_traceback(
    engine: RawEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    process = engine.launch("missing")
    failed = engine.receive_until(StartFailed)
    assert (failed.error.kind, failed.error.message) == ("ModelFileError", "there is no model called 'missing'")
    engine.socket.send(encode(Shutdown()))
    assert process.wait(120) == EXIT_START_FAILED
    assert capfd.readouterr().err == ""


def test_cancels_of_unknown_requests_are_no_matter(engine: RawEngine) -> None:
    engine.launch()
    engine.receive_until(Ready)
    engine.socket.send(encode(Cancel("nobody")))
    engine.socket.send(encode(Cancel("nobody", 3)))
    engine.socket.send(encode(request("r", max_tokens=1)))
    assert engine.receive_until(Deltas).deltas[0].request_id == "r"


@pytest.mark.parametrize(("is_told_whole", "most_messages"), [(True, 2), (False, 50)])
def test_an_answer_that_is_read_when_it_is_whole_takes_two_messages(
    is_told_whole: bool, most_messages: int, engine: RawEngine
) -> None:
    engine.launch()
    engine.receive_until(Ready)
    engine.socket.send(encode(replace(request("r", max_tokens=50), is_told_whole=is_told_whole)))
    messages: list[Deltas] = []
    while not messages or messages[-1].deltas[-1].finish_reason is None:
        messages.append(engine.receive_until(Deltas))
    tokens = [token for message in messages for delta in message.deltas for token in delta.tokens]
    assert tokens == [next_token("r", 0, position) for position in range(3, 53)]
    assert len(messages) == most_messages


def test_garbage_is_looked_for_again_after_imports_that_fail_too() -> None:
    with pytest.raises(ImportError), without_collections():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
    gc.unfreeze()
