"""The requests of a run, made from the settings and a seed before the run begins."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from trivium.bench.arrival import ArrivalKind, arrival_times
from trivium.bench.client import PlannedRequest
from trivium.bench.lengths import draw_lengths
from trivium.bench.prompts import PromptCost, block_prompt, own_prompt, prefixed_prompt
from trivium.bench.settings import ArrivalSettings, PrefixSettings, ReplaySettings, WorkloadSettings
from trivium.bench.trace import MOONCAKE_BLOCK_TOKENS, TracedRequest


def synthetic(settings: WorkloadSettings, name: str, cost: PromptCost, shape: str = "") -> list[PlannedRequest]:
    """Prompts that share no beginning. Equal `shape`s have equal lengths, equal `name`s have equal words."""
    rng = random.Random(f"{settings.seed}/lengths/{shape}")
    lengths = draw_lengths(settings.lengths, settings.prompt_tokens, settings.output_tokens, settings.requests, rng)
    return [
        PlannedRequest(index, 0, own_prompt(f"{settings.words}/{name}/{index}", one.prompt, cost), *one)
        for index, one in enumerate(lengths)
    ]


def sharing(
    settings: WorkloadSettings, prefix: PrefixSettings, name: str, cost: PromptCost, *, shared: bool
) -> list[PlannedRequest]:
    """Prompts with a beginning that they share, in turns if there are several; or as long, and with nothing to share."""
    plan = []
    for index in range(settings.requests):
        key = f"{settings.words}/{name}"
        prefix_key = f"{key}/prefix/{index % prefix.prefixes if shared else f'own {index}'}"
        text = prefixed_prompt(prefix_key, prefix.prefix_tokens, f"{key}/{index}", settings.prompt_tokens, cost)
        tokens = prefix.prefix_tokens + settings.prompt_tokens
        plan.append(PlannedRequest(index, 0, text, tokens, settings.output_tokens))
    return plan


def schedule(plan: Sequence[PlannedRequest], rate: float, arrival: ArrivalSettings, seed: str) -> list[PlannedRequest]:
    """The same requests, each with its time."""
    kind: ArrivalKind = arrival.arrival
    times = arrival_times(
        kind,
        rate,
        len(plan),
        random.Random(f"{seed}/arrivals"),
        burstiness=arrival.burstiness,
        burst_size=arrival.burst_size,
    )
    return [msgspec.structs.replace(request, at_ns=at) for request, at in zip(plan, times, strict=True)]


class Replay(Struct, frozen=True):
    plan: list[PlannedRequest]
    notes: list[str]


def replay(trace: Sequence[TracedRequest], settings: ReplaySettings, context: int | None, cost: PromptCost) -> Replay:
    """What the trace asks for, within the limits; `context` is the model's, where it is known."""
    chosen = [request for request in trace if request.at >= settings.start][: settings.max_requests]
    plan, shortened = [], 0
    for index, request in enumerate(chosen):
        output = min(request.output_tokens, settings.max_output_tokens or request.output_tokens)
        prompt = min(request.prompt_tokens, settings.max_prompt_tokens or request.prompt_tokens)
        if context is not None:
            output = max(1, min(output, context // 2))
            # Words are not tokens: a tenth of the room is left for the difference.
            prompt = max(1, min(prompt, int((context - output) * 0.9)))
        shortened += (prompt, output) != (request.prompt_tokens, request.output_tokens)
        text = _traced_text(index, request, prompt, str(settings.words), cost)
        at_ns = round((request.at - chosen[0].at) / settings.speed * 1e9)
        plan.append(PlannedRequest(index, at_ns, text, prompt, output))
    notes = [f"the trace is replayed at {settings.speed:g} × its speed: {len(plan)} of its {len(trace)} requests"]
    if shortened:
        longest = max(request.prompt_tokens for request in chosen), max(request.output_tokens for request in chosen)
        kept = max(request.prompt_tokens for request in plan), max(request.output_tokens for request in plan)
        notes.append(
            f"{shortened} of {len(plan)} requests were shortened: prompts were up to {longest[0]} tokens and are up to"
            f" {kept[0]}, answers were up to {longest[1]} and are up to {kept[1]}"
        )
    return Replay(plan, notes)


def _traced_text(index: int, request: TracedRequest, tokens: int, words: str, cost: PromptCost) -> str:
    if request.blocks:
        return block_prompt(words, request.blocks, MOONCAKE_BLOCK_TOKENS, tokens, cost)
    return own_prompt(f"{words}/trace/{index}", tokens, cost)
