"""Every lie is caught before or at its first use: refused in a sentence, or worked around and said; no wrong token, no crash."""

from __future__ import annotations

import os
from pathlib import Path

import liar_ops
import liar_platform
import pytest
from liar_engine import finish, options, submit

from trivium.engine.core import EngineCore
from trivium.engine.examine import foresee
from trivium.engine.preview import PreviewRequest
from trivium.engine.trial import TrialRequest, Verdict, try_rung
from trivium.platform.select import select_platform
from trivium.types.decisions import Wish
from trivium.types.errors import ConfigError, InvalidRequestError

# Before the engine starts, in the process that asks first.
REFUSED = {
    "a dtype that is none": "it computes in float4, and there are float32, bfloat16, float16",
    "more free than there is": "bytes of memory are free",
    "wrong total memory": "of which this process may use",
    "no threads": "it has 0 threads",
    "a crash when asked": "was killed by SIGSEGV when asked to detect",
    "an error when asked": "failed when asked for capabilities: OSError: error 107030",
    "answers of another kind": "answered static with a dict",
    "a changed contract": "speaks contract 3, and 1 and 2 are served",
    "an older contract, changed": "has no give_back_unused, which the contract that it speaks asks for",
    "an impossible limit": "runs sequences of 0 tokens at most",
    "an error while negotiating": "failed when asked for negotiate: KeyError: 'EZ9999'",
    "a say in what is not its own": "wants to change 'seed', in which it has no say",
    "a silent change": "max_num_seqs 4 cannot be kept, since that is what we tested: give 1",
    "something else for ops": "gave a dict as its ops",
}
# At the start, by trying: the reference runs in its place, and the report says so.
DEMOTED = {
    "a miscompiled op": ("linear", "numbers further from the reference"),
    "an op wrong for odd shapes only": ("rms_norm", "numbers further from the reference"),
    "an op that is not there": ("rotary", "NotImplementedError: no kernel image is available"),
    "a result of another shape": ("gated", "a result of shape"),
    "no numbers": ("rms_norm", "NaN where the reference has numbers"),
    "memory left unwritten": ("gated", "NaN where the reference has numbers"),
    "a crash": ("rotary", "the process that tried it was killed by SIGSEGV"),
    "a slow op": ("gated", "times as long as the reference"),
}


def test_without_a_lie_it_runs(model: Path, right_tokens: list[int]) -> None:
    core = EngineCore(options(model, kernels="reference"))
    submit(core, "r", range(3, 21))
    assert finish(core) == ({"r": right_tokens}, {})


@pytest.mark.parametrize("lie", REFUSED)
def test_a_lie_that_can_be_seen_is_refused_in_a_sentence(
    lie: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, lie)
    foreseen = foresee(PreviewRequest(options(model)))
    assert foreseen.refusal is not None and REFUSED[lie] in foreseen.refusal.reason
    with pytest.raises(ConfigError) as raised:
        EngineCore(options(model))
    assert str(raised.value) == foreseen.refusal.reason


def test_a_liar_does_not_keep_others_from_running(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, "a crash when asked")
    selection = select_platform("auto")
    assert selection.platform.name in ("cpu", "cuda")
    assert [one.detection.state for one in selection.considered if one.name == "liar"] == ["broken"]


def test_a_device_that_is_taken_by_looking_for_it_is_taken_in_another_process(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who only looks must be able to leave it, and to start others that take it."""
    monkeypatch.setenv(liar_platform.VARIABLE, "a device that is taken when it is looked for")
    monkeypatch.delenv(liar_platform.TAKEN, raising=False)
    for device in ("auto", "liar"):
        assert select_platform(device).platform.name == "liar"
        assert liar_platform.TAKEN not in os.environ
    liar_platform.LiarPlatform().detect()
    assert os.environ.pop(liar_platform.TAKEN) == str(os.getpid()), "the lie is told"


@pytest.mark.parametrize("lie", DEMOTED)
def test_an_op_that_is_wrong_is_never_used(
    lie: str, model: Path, right_tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, lie)
    core = EngineCore(options(model))
    submit(core, "r", range(3, 21))
    assert finish(core) == ({"r": right_tokens}, {})
    op, said = DEMOTED[lie]
    chosen = {choice.op: choice for choice in core.card.report.kernels}
    assert chosen[op].kernel == "reference" and said in chosen[op].reason
    assert chosen["embed"].kernel == "liar"
    assert any(line.startswith(op) and said in line for line in core.card.report.fallbacks)


def test_a_hang_is_an_answer_and_what_comes_after_it_is_tried(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, "a hang")
    request = TrialRequest(
        platform="liar", wish=Wish(), device="cpu", dtype="float32", num_threads=1, used=("linear", "embed", "rotary")
    )
    assert try_rung(request, silent_seconds=6) == [
        Verdict("linear", None),
        Verdict("embed", "it did not end within 6 s", lasts=False),
        Verdict("rotary", None),
    ]


def test_strict_refuses_what_would_run_below_its_rung(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, "a miscompiled op")
    with pytest.raises(ConfigError) as raised:
        EngineCore(options(model, strict="liar"))
    assert "strict liar: linear" in str(raised.value) and "numbers further from the reference" in str(raised.value)


def test_a_replay_of_what_was_is_not_replayed(
    model: Path, right_tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, "a replay of what was")
    core = EngineCore(options(model))
    submit(core, "r", range(3, 21))
    assert finish(core) == ({"r": right_tokens}, {})
    assert "captured steps: a replay gives what another input gave" in core.card.report.fallbacks
    assert core.execution_stats().replayed_steps == 0


IN_SERVICE = {
    "wrong after a while": "rms_norm: in service: numbers further from the reference",
    "an error after a while": "rotary: in service: it raised RuntimeError: error 507899",
    "no numbers after a while": "gated: in service: NaN",
    "a replay that goes wrong": "captured steps: in service: numbers further from the reference",
}


@pytest.mark.parametrize("lie", IN_SERVICE)
def test_what_goes_wrong_in_service_is_left_and_no_request_notices(
    lie: str, model: Path, right_tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, lie)
    core = EngineCore(options(model, shadow_every=1))
    assert core.execution_stats().demotions == {}
    for name in ("r", "s"):
        submit(core, name, range(3, 21))
    begun = [delta for _ in range(3) for delta in core.step()]
    liar_ops.PRESSURE.is_on = True
    tokens, errors = finish(core)
    assert errors == {}
    for name in ("r", "s"):
        before = [token for delta in begun if delta.request_id == name for token in delta.tokens]
        assert before + tokens[name] == right_tokens
    (told,) = core.execution_stats().demotions
    assert told.startswith(IN_SERVICE[lie])


def test_a_replay_that_is_wrong_of_this_model_only_is_caught_while_it_warms_up(
    model: Path, right_tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, "a replay that is wrong of this model")
    liar_ops.PRESSURE.is_on = True  # here, and not in the process that tries the ops
    core = EngineCore(options(model, shadow_every=1))
    assert [told.partition(":")[0] for told in core.execution_stats().demotions] == ["captured steps"]
    assert core.card.graph == "none: these kernels have no graph mode"
    submit(core, "r", range(3, 21))
    assert finish(core) == ({"r": right_tokens}, {})


def test_captures_end_where_the_streams_do(
    model: Path, right_tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, "too few streams")
    core = EngineCore(options(model))
    submit(core, "r", range(3, 21))
    assert finish(core) == ({"r": right_tokens}, {})
    assert f"steps of {liar_ops.MOST_STREAMS} numbers of rows" in core.card.graph
    assert "stream resources are insufficient" in core.card.graph


def test_memory_that_is_short_only_under_pressure_costs_only_the_request_that_is_too_large(
    model: Path, right_tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, "no memory under pressure")
    core = EngineCore(options(model))
    liar_ops.PRESSURE.is_on = True
    submit(core, "small", range(3, 21))
    submit(core, "large", range(3, 60))
    tokens, errors = finish(core)
    assert tokens["small"] == right_tokens
    assert errors.keys() == {"large"}
    liar_ops.PRESSURE.is_on = False
    submit(core, "after", range(3, 21))
    assert finish(core) == ({"after": right_tokens}, {})


def test_an_index_that_the_device_would_not_survive_never_reaches_it(
    model: Path, right_tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(liar_platform.VARIABLE, "an abort at a bad index")
    core = EngineCore(options(model))
    with pytest.raises(InvalidRequestError, match="token id 97 is outside the vocabulary of 97"):
        submit(core, "bad", range(90, 98))
    submit(core, "r", range(3, 21))
    assert finish(core) == ({"r": right_tokens}, {})
