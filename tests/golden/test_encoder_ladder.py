"""Encoders whose kernels lie or raise while they serve: those are left, and every text has its vector."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from encoders import ENCODERS, SCORERS, encode, open_encoder

from trivium import faults
from trivium.engine.encoder_core import EncoderCore
from trivium.faults import Injector
from trivium.kernels.native import native_state, usable_instruction_sets
from trivium.types.errors import ConfigError
from trivium.types.request import Request, Sampling, Stopping

pytestmark = pytest.mark.skipif(
    "native" not in native_state() or len(usable_instruction_sets()) < 2, reason="there is no native rung below"
)

TEXTS = [list(range(3, 3 + length)) for length in (90, 1, 17, 130)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("encoder")
    ENCODERS[0].save(directory)
    return directory


@pytest.fixture(scope="module")
def right(model: Path) -> torch.Tensor:
    return encode(open_encoder(model), TEXTS)


def failing(run: Callable[..., Any], *whens: int) -> Callable[..., Any]:
    """The op, which raises at these of its calls; at each, if none is named."""
    calls = iter(range(1_000_000))

    def run_or_raise(*arguments: Any) -> Any:
        if next(calls) in whens or not whens:
            raise RuntimeError("no kernel image is available")
        return run(*arguments)

    return run_or_raise


def put(core: EncoderCore, **ops: Any) -> None:
    core._runner._model.ops = replace(core._runner.ops, **ops)


@pytest.mark.parametrize("encoder", [*ENCODERS, *SCORERS], ids=lambda encoder: f"{encoder.model}-{encoder.name}")
def test_right_kernels_are_not_accused_and_vectors_stay_the_same(encoder: Any, tmp_path: Path) -> None:
    encoder.save(tmp_path)
    plain, looked_at = open_encoder(tmp_path, shadow_every=0), open_encoder(tmp_path, shadow_every=1)
    assert torch.equal(encode(plain, TEXTS), encode(looked_at, TEXTS))
    assert looked_at.execution_stats().demotions == {}


@pytest.mark.parametrize(
    ("op", "lie"),
    [
        ("layer_norm", lambda run: lambda *arguments: run(*arguments) * 1.1),
        ("activate", lambda run: lambda x, function: x),
        ("text_attention", lambda run: lambda *arguments: run(*arguments) * float("nan")),
    ],
)
def test_an_op_that_lies_falls_to_the_next_instruction_set(
    op: str, lie: Callable[..., Any], model: Path, right: torch.Tensor
) -> None:
    core = open_encoder(model, shadow_every=1)
    put(core, **{op: lie(getattr(core._runner.ops, op))})
    torch.testing.assert_close(encode(core, TEXTS), right, rtol=0.02, atol=0.02)
    assert [told.partition(":")[0] for told in core.execution_stats().demotions] == [op]
    assert core._runner.ops.providers[op].name == f"native {usable_instruction_sets()[-2]}"


def test_an_op_that_raises_falls_to_the_next_instruction_set(model: Path, right: torch.Tensor) -> None:
    core = open_encoder(model)
    put(core, activate=failing(core._runner.ops.activate))
    torch.testing.assert_close(encode(core, TEXTS), right, rtol=0.02, atol=0.02)
    told = "activate: in service: it raised RuntimeError: no kernel image is available"
    assert core.execution_stats().demotions == {told: 1}


def test_where_strictness_forbids_the_rung_below_the_engine_ends(model: Path) -> None:
    best = usable_instruction_sets()[-1]
    core = open_encoder(model, strict=best)
    put(core, activate=failing(core._runner.ops.activate))
    with pytest.raises(ConfigError, match=f"strict {best}: .* activate: in service: it raised RuntimeError"):
        encode(core, TEXTS)


def test_a_step_that_fails_once_costs_no_text_its_vector(model: Path, right: torch.Tensor) -> None:
    core = open_encoder(model)
    put(core, layer_norm=failing(core._runner.ops.layer_norm, 2))
    assert torch.equal(encode(core, TEXTS), right)
    stats = core.stats()
    assert (stats.failed_steps, stats.suspects, stats.failed) == (1, 0, 0)
    assert stats.prompt_tokens == sum(len(text) for text in TEXTS)
    assert core.execution_stats().demotions == {}


@pytest.mark.parametrize("times", [1, 2])
def test_a_fault_in_a_step_is_survived_once_and_told_of_the_second_time(
    times: int, model: Path, right: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "faults.json"
    plan.write_text(json.dumps([{"id": "a", "point": "runner.encode", "times": times}]))
    monkeypatch.setattr(faults, "_INJECTOR", Injector(plan))
    core = open_encoder(model)
    core.add(Request("t", tuple(TEXTS[2]), Sampling(seed=0, pools=True), Stopping(max_tokens=1), 0.0))
    deltas = [delta for _ in range(3) for delta in core.step()]
    assert len(deltas) == 1 and not core.has_work
    if times == 1:
        assert torch.equal(torch.frombuffer(bytearray(deltas[0].pooled), dtype=torch.float32), right[2])
    else:
        assert deltas[0].error == "the engine failed while it computed this request (InjectedFault)"


def test_a_text_that_no_rung_can_encode_fails_alone(model: Path, right: torch.Tensor) -> None:
    core = open_encoder(model)
    run = core._runner.ops.text_attention

    def wanting(q: Any, *rest: Any) -> Any:
        if 17 in rest[2].diff():  # the third text is in the step
            raise MemoryError("17 tokens do not fit")
        return run(q, *rest)

    put(core, text_attention=wanting)
    for place, tokens in enumerate(TEXTS):
        pooling = Sampling(seed=0, pools=True)
        core.add(Request(str(place), tuple(tokens), pooling, Stopping(max_tokens=1), float(place)))
    told = {}
    while core.has_work:
        told.update({delta.request_id: delta for delta in core.step()})
    assert {name for name, delta in told.items() if delta.error is not None} == {"2"}
    for place in (0, 1, 3):
        vector = torch.frombuffer(bytearray(told[str(place)].pooled), dtype=torch.float32)
        assert torch.equal(vector, right[place])
    assert core.stats().suspects == 0
