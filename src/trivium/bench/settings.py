"""The options of `trivium bench`. Each has its meaning beside it; the command line is made from here."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Positive = Annotated[float, Meta(gt=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]


class TargetSettings(Struct, frozen=True, kw_only=True):
    base_url: Annotated[
        str | None,
        Meta(description="of a server that runs, such as http://127.0.0.1:8000/v1; without it one is started"),
    ] = None
    model: Annotated[str | None, Meta(description="the name in requests; default: the first that the server lists")] = (
        None
    )
    api_key: Annotated[str | None, Meta(description="sent as a bearer token; it is not kept in the bundle")] = None
    server_options: Annotated[
        str | None, Meta(description="options for the server that is started, in one string: '--max-num-seqs 8'")
    ] = None


class AnswerOptions(Struct, frozen=True, kw_only=True):
    endpoint: Annotated[Literal["chat", "completions"], Meta(description="of the two that take prompts")] = "chat"
    temperature: Annotated[float, Meta(description="0 always takes the likeliest token", ge=0)] = 0.0
    ignore_eos: Annotated[
        bool, Meta(description="every answer has the planned length; not every server knows the field")
    ] = True
    timeout: Annotated[float, Meta(description="for one request, seconds", gt=0)] = 600.0


class WorkloadSettings(Struct, frozen=True, kw_only=True):
    requests: Annotated[int, Meta(description="in each run", ge=1)] = 100
    lengths: Annotated[
        Literal["fixed", "uniform", "sharegpt"],
        Meta(description="fixed; uniform: half to one and a half of the mean; sharegpt: log-normal, means 161 and 338"),
    ] = "fixed"
    prompt_tokens: Annotated[int, Meta(description="of each prompt, the chat template included", ge=1)] = 256
    output_tokens: Annotated[int, Meta(description="of each answer", ge=1)] = 64
    warmup: Annotated[int, Meta(description="requests before the first run that are not measured", ge=0)] = 2
    seed: Annotated[int, Meta(description="of lengths and arrivals")] = 0
    words: Annotated[
        str | None,
        Meta(description="equal names give equal words; default: new ones, which no server has in its cache"),
    ] = None


class LoadSettings(Struct, frozen=True, kw_only=True):
    rate: Annotated[
        str | None, Meta(description="open loop: requests a second; several with commas make one run each")
    ] = None
    concurrency: Annotated[
        AtLeastOne | None, Meta(description="closed loop: requests under way at any time; default: 8 without --rate")
    ] = None


class ArrivalSettings(Struct, frozen=True, kw_only=True):
    arrival: Annotated[
        Literal["poisson", "constant", "gamma", "burst"], Meta(description="how an open loop's requests are spaced")
    ] = "poisson"
    burstiness: Annotated[
        float, Meta(description="shape of gamma gaps: 1 is poisson, below it requests come in clumps", gt=0)
    ] = 1.0
    burst_size: Annotated[int, Meta(description="requests sent at once by --arrival burst", ge=1)] = 8


class ThroughputSettings(Struct, frozen=True, kw_only=True):
    concurrency: Annotated[AtLeastOne | None, Meta(description="requests under way at most; default: all")] = None


class SloSettings(Struct, frozen=True, kw_only=True):
    ttft_ms: Annotated[Positive | None, Meta(description="limit of the time to the first token")] = None
    tpot_ms: Annotated[Positive | None, Meta(description="limit of the mean time between tokens")] = None
    e2e_ms: Annotated[Positive | None, Meta(description="limit of the time to the end of the answer")] = None
    attain: Annotated[float, Meta(description="share of all requests that must keep every limit", gt=0, le=1)] = 0.95


class SearchSettings(Struct, frozen=True, kw_only=True):
    start_rate: Annotated[float, Meta(description="first rate tried, requests a second", gt=0)] = 1.0
    max_rate: Annotated[float, Meta(description="no higher rate is tried", gt=0)] = 1024.0
    precision: Annotated[float, Meta(description="the search ends when the answer is known to this share", gt=0)] = 0.05
    max_runs: Annotated[int, Meta(description="the search ends after so many", ge=1)] = 20


class PrefixSettings(Struct, frozen=True, kw_only=True):
    prefix_tokens: Annotated[int, Meta(description="that prompts share, before --prompt-tokens of their own", ge=1)] = (
        1024
    )
    prefixes: Annotated[int, Meta(description="different shared beginnings", ge=1)] = 1


class ReplaySettings(Struct, frozen=True, kw_only=True):
    speed: Annotated[float, Meta(description="2 replays the trace in half its time", gt=0)] = 1.0
    start: Annotated[float, Meta(description="seconds of the trace to leave out at its beginning", ge=0)] = 0.0
    max_requests: Annotated[AtLeastOne | None, Meta(description="of the trace; default: all")] = None
    max_prompt_tokens: Annotated[
        AtLeastOne | None, Meta(description="longer prompts are shortened, which is said; default: the model's context")
    ] = None
    max_output_tokens: Annotated[AtLeastOne | None, Meta(description="longer answers are shortened, and said")] = None
    warmup: Annotated[int, Meta(description="requests before the trace that are not measured", ge=0)] = 2
    words: Annotated[
        str | None,
        Meta(description="equal names give equal words; default: new ones, which no server has in its cache"),
    ] = None


class CompareSettings(Struct, frozen=True, kw_only=True):
    rounds: Annotated[int, Meta(description="in each, both servers are measured once; the order alternates", ge=4)] = 8
    confidence: Annotated[float, Meta(description="of the intervals", gt=0.5, lt=1)] = 0.95
    min_effect: Annotated[
        float, Meta(description="a difference counts when the whole interval is beyond this share", ge=0)
    ] = 0.02
    by: Annotated[Literal["e2e", "ttft", "tpot", "throughput"], Meta(description="what the verdict is about")] = "e2e"
    a_options: Annotated[str | None, Meta(description="options for server A where it is started")] = None
    b_options: Annotated[str | None, Meta(description="options for server B where it is started")] = None
    a_model: Annotated[str | None, Meta(description="name in requests to A; default: the first that it lists")] = None
    b_model: Annotated[str | None, Meta(description="name in requests to B; default: the first that it lists")] = None
    api_key: Annotated[str | None, Meta(description="for both, as a bearer token; it is not kept")] = None


class OutputSettings(Struct, frozen=True, kw_only=True):
    output: Annotated[
        str | None, Meta(description="folder of the evidence bundle; default: trivium-bench/<mode>-<time>")
    ] = None
    title: Annotated[str | None, Meta(description="of the report")] = None
