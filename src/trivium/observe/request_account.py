"""Where a request's time went, from its first byte to its last, and what it cost: causes that sum to its wall time."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from trivium.observe.prices import Cost
from trivium.observe.request_end import RequestEnd
from trivium.types.account import Account

# What each cause means, for people.
MEANINGS = {
    "receiving": "reading the request, rendering its template, splitting it into tokens",
    "handover": "waiting for the engine to finish the step under way",
    "grammar": "waiting for its grammar",
    "queued": "waiting for room",
    "prompt": "computing its prompt",
    "decode": "decoding",
    "decode_beside_prompts": "decoding in steps that also computed prompts of others",
    "preempted": "waiting for room again, after others took its place",
    "recomputed": "computing again what it had lost with its place",
    "waited": "between steps, and in steps without it",
    "own_texts": "computing other texts of the same request",
    "engine": "in the engine, which did not say how",
    "answering": "turning tokens into text and writing it",
    "client": "waiting for the client to read",
}


# With what a sequence ends where it is ended from outside, the likeliest first.
ENDING = (
    "decode",
    "decode_beside_prompts",
    "waited",
    "prompt",
    "recomputed",
    "preempted",
    "queued",
    "grammar",
    "handover",
    "own_texts",
)


class RequestAccount(Struct, frozen=True, omit_defaults=True):
    """Where a request had several sequences, the causes are those of the one that ended last: the others ran beside it."""

    request_id: str
    end: RequestEnd
    received: float  # seconds since 1970
    seconds: float  # first byte to last
    causes: dict[str, float]  # seconds; their sum is `seconds`
    caller: str = ""  # the name of its key
    num_sequences: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_ahead: int = 0
    why_queued: str = ""
    num_chunks: int = 0
    why_missed: str = ""
    num_steps: int = 0
    mean_batch: float = 0.0  # sequences that decoded in one step with it, itself among them
    num_replayed: int = 0
    num_preemptions: int = 0
    preempted_by: str = ""
    engine_seconds: float = 0.0  # its share of the engine's steps, all sequences together
    cost: Cost | None = None
    time_to_first_token: float | None = None  # seconds from its first byte to where its first token was handed on
    inter_token_latency: float | None = None  # seconds, the mean over all tokens but the first of each sequence


class SequenceGroup(Struct, frozen=True):
    """What the sequences of one prompt, or of texts that were sent together, told; or how long they took where they told
    nothing."""

    handed: float  # to the engine, the first of them; seconds of CLOCK_MONOTONIC, as is the next
    ended: float  # when the last of their text was there, or nobody wanted it any more
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    accounts: tuple[Account, ...] = ()
    num_silent: int = 0  # sequences that have told nothing


def account_for(
    request_id: str,
    end: RequestEnd,
    received_at: float,
    began: float,
    now: float,
    groups: Sequence[SequenceGroup],
    slow_client: float = 0.0,
) -> RequestAccount:
    """`received_at`: since 1970; `began` and `now`: of CLOCK_MONOTONIC. `slow_client`: seconds in which nothing but the
    client was waited for, after the last token."""
    if not groups:
        return RequestAccount(request_id, end, received_at, now - began, {"receiving": now - began})
    last = max(groups, key=lambda group: group.ended)
    accounts = [account for group in groups for account in group.accounts]
    causes, told = _engine_causes(last)
    answering = now - last.ended
    client = min(slow_client, answering)
    causes["answering"] = causes.get("answering", 0.0) + answering - client
    return RequestAccount(
        request_id,
        end,
        received_at,
        now - began,
        {
            name: seconds
            for name, seconds in (("receiving", last.handed - began), *causes.items(), ("client", client))
            if seconds
        },
        num_sequences=len(accounts),
        num_prompt_tokens=sum(group.num_prompt_tokens for group in groups),
        num_cached_tokens=sum(_cached(group) for group in groups),
        num_generated_tokens=sum(group.num_generated_tokens for group in groups),
        num_ahead=told.num_ahead,
        why_queued=told.why_queued,
        num_chunks=told.num_chunks,
        why_missed=told.why_missed,
        num_steps=told.num_steps,
        mean_batch=told.num_rows / told.num_steps if told.num_steps else 0.0,
        num_replayed=told.num_replayed,
        num_preemptions=sum(account.num_preemptions for account in accounts),
        preempted_by=told.preempted_by,
        engine_seconds=sum(account.engine_seconds for account in accounts),
    )


def _cached(group: SequenceGroup) -> int:
    """Prompt tokens that were found: by the first sequence, which the others follow."""
    return max((account.num_cached_tokens for account in group.accounts), default=0)


def _engine_causes(group: SequenceGroup) -> tuple[dict[str, float], Account]:
    """Of the sequence that ended last, up to the moment when its text was there; what the engine did not account for is
    a cause of its own."""
    told = max(group.accounts, key=lambda account: account.ended, default=None)
    if told is None:
        return {"engine": group.ended - group.handed}, Account(group.handed, group.ended)
    causes = {"own_texts": told.arrival - group.handed, **told.causes()}
    rest = group.ended - told.ended
    if rest >= 0:
        causes["engine" if group.num_silent else "answering"] = rest
    else:
        _take_off(causes, -rest)
    return causes, told


def _take_off(causes: dict[str, float], seconds: float) -> None:
    """What an engine did after nobody wanted it any more (a stop string had come, the client had gone) is no part of the
    request's time. It is the end of what a sequence does: a step, and before that what comes before steps."""
    for cause in ENDING:
        taken = min(causes[cause], seconds)
        causes[cause] -= taken
        seconds -= taken


def meanings(account: RequestAccount) -> dict[str, str]:
    """What each cause was, by its name; the largest first."""
    ordered = sorted(account.causes, key=lambda cause: -account.causes[cause])
    return {cause: f"{MEANINGS[cause]}{_detail(account, cause)}" for cause in ordered}


def sentences(account: RequestAccount) -> list[str]:
    """The account for people."""
    lines = [f"{account.seconds:.3f} s from the first byte to the last; it ended {account.end}."]
    if account.time_to_first_token is not None:
        lines.append(f"{account.time_to_first_token:.3f} s to the first token{_between(account)}.")
    for cause, meaning in meanings(account).items():
        seconds = account.causes[cause]
        share = seconds / account.seconds if account.seconds else 0.0
        lines.append(f"{seconds:8.3f} s {share:5.1%}  {meaning}")
    return lines


def _between(account: RequestAccount) -> str:
    if account.inter_token_latency is None:
        return ""
    return f", then {account.inter_token_latency * 1000:.1f} ms from one to the next in the mean"


def _detail(account: RequestAccount, cause: str) -> str:
    match cause:
        case "queued" if account.why_queued:
            return f": {account.why_queued} was wanting, and {account.num_ahead} sequences were before it"
        case "prompt":
            found = f"{account.num_cached_tokens} of {account.num_prompt_tokens} tokens were found in the cache"
            why = f" (the rest: {account.why_missed})" if account.why_missed else ""
            return f" in {account.num_chunks} steps; {found}{why}"
        case "decode" | "decode_beside_prompts" if account.num_steps:
            replayed = f"{account.num_replayed} of {account.num_steps} steps replayed from a graph"
            return f"; {account.mean_batch:.1f} sequences to a step, {replayed}"
        case "preempted":
            return f": {account.num_preemptions} times, last by {account.preempted_by or 'the engine'}"
    return ""
