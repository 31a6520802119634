"""Samples and records with known times."""

from __future__ import annotations

from trivium.bench.record import Comparison, Record, RunPlan, Target
from trivium.bench.samples import Outcome, RequestSample

MS = 1_000_000


def sample(
    index: int = 0,
    *,
    run: int = 0,
    scheduled: int = 0,
    sent: int = 0,
    text: tuple[int, ...] = (),
    ended: int = 0,
    outcome: Outcome = Outcome.COMPLETE,
    status: int | None = 200,
    output_tokens: int | None = None,
    prompt_tokens: int | None = None,
    cached_tokens: int | None = None,
) -> RequestSample:
    """Times in milliseconds."""
    return RequestSample(
        run=run,
        index=index,
        scheduled_ns=scheduled * MS,
        sent_ns=sent * MS,
        ended_ns=ended * MS,
        text_ns=[at * MS for at in text],
        outcome=outcome,
        status=status,
        planned_prompt_tokens=10,
        planned_output_tokens=5,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
    )


def record(
    *runs: RunPlan,
    mode: str = "serve",
    title: str = "hand-made",
    full_answers: bool = False,
    comparison: Comparison | None = None,
    **more: object,
) -> Record:
    return Record(
        mode=mode,  # type: ignore[arg-type]
        title=title,
        command=["trivium", "bench"],
        settings={"seed": 0},
        started_at="2026-01-01T00:00:00+00:00",
        targets=[
            Target(
                base_url="http://127.0.0.1:1/v1", model="m", max_model_len=None, started_with=None, words_cost=(1, 0)
            )
        ],
        software={"trivium": "0"},
        machine={"processors": "1"},
        notes=[],
        full_answers=full_answers,
        runs=list(runs) or [RunPlan(label="one", loop="open", rate=2.0)],
        comparison=comparison,
        **more,  # type: ignore[arg-type]
    )
