"""Prometheus metrics: each name has one meaning, written in its help text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trivium.faults import fault_point
from trivium.observe.events import (
    EngineSample,
    Event,
    FirstToken,
    PromptComputed,
    RequestEnded,
    RequestReceived,
    SequenceEnded,
    TextEncoded,
    TokensGenerated,
    TokensHanded,
)
from trivium.observe.request_account import MEANINGS
from trivium.observe.request_end import RequestEnd
from trivium.observe.slo import Slo
from trivium.observe.vllm_names import VllmNames

CONTENT_TYPE = CONTENT_TYPE_LATEST
MODEL = "model_name"  # the label

# Seconds. About three for each factor of ten: from a step of a small model to a long prompt on a CPU.
FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
INTER_TOKEN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
REQUEST_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class _OfModel(Struct, frozen=True):
    """What is counted often, by a model's name: found once, for the labels of a metric take longer than its counting."""

    prompt_tokens: Counter
    cached_tokens: Counter
    encoded_texts: Counter
    generated_tokens: Counter
    first_token: Histogram
    inter_token: Histogram
    request_time: Histogram
    engine_seconds: Counter


class Metrics:
    """Counts what is heard as events, and shows what the engine said of itself when it was last asked."""

    def __init__(self, slo: Slo | None = None) -> None:
        self._slo = slo or Slo()
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"trivium_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"trivium_{name}", text, [MODEL], buckets=buckets, registry=registry)

        self._received = counter("requests_received", "Requests for text that came in; each ends in exactly one way")
        self._ended = counter(
            "requests_ended", "Requests for text, by how they ended and by the model they came to, if any", "end", MODEL
        )
        self._in_flight = Gauge(
            "trivium_requests_in_flight", "Requests for text that came in and have not ended", registry=registry
        )
        self._slo_requests = counter(
            "slo_requests",
            "Requests that somebody waited for and that the server could have answered, by whether they met its targets",
            "met",
            MODEL,
        )
        self._sequences = counter("sequences_ended", "Answers that came to their end, by its reason", "reason", MODEL)
        self._prompt_tokens = counter(
            "prompt_tokens", "Tokens of prompts that were processed, found in the cache or not", MODEL
        )
        self._cached_tokens = counter(
            "cached_prompt_tokens", "Tokens of prompts whose keys and values were found", MODEL
        )
        self._encoded_texts = counter("encoded_texts", "Texts, and pairs of them, that became vectors or scores", MODEL)
        self._generated_tokens = counter("generated_tokens", "Tokens sampled", MODEL)
        self._first_token = histogram(
            "time_to_first_token_seconds",
            "From a request's first byte to where the first token of an answer was handed to its client",
            FIRST_TOKEN_BUCKETS,
        )
        self._inter_token = histogram(
            "inter_token_seconds",
            "Between tokens of one sequence, as handed to the client; tokens that come together share their wait",
            INTER_TOKEN_BUCKETS,
        )
        self._request_time = histogram(
            "request_seconds",
            "From a request's first byte to the end of its answer, for those that completed",
            REQUEST_BUCKETS,
        )
        self._causes = counter(
            "request_cause_seconds",
            "Where the time of requests went, whatever their end; over all causes that is the time of all requests",
            "cause",
            MODEL,
        )
        self._engine_seconds = counter(
            "request_engine_seconds", "Of the engine's steps, the shares of requests that ended", MODEL
        )
        self._cost = counter("request_cost", "What requests that ended cost, by the price file", "currency", MODEL)
        self._joules = counter(
            "request_joules", "Energy of requests that ended, where the machine's can be read", MODEL
        )
        self._models: dict[str, _OfModel] = {}
        self._show("")  # requests that come to no model

        self._engine = EngineCollector()
        registry.register(self._engine)
        self._vllm_names = CollectorRegistry()
        self._vllm_names.register(VllmNames(registry.collect))

    def _show(self, model: str) -> None:
        """From now on its counters are shown, at 0 before the first of what they count."""
        for end in RequestEnd:
            self._ended.labels(end, model)
        for cause in MEANINGS:
            self._causes.labels(cause, model)
        for met in ("yes", "no"):
            self._slo_requests.labels(met, model)

    def _of(self, model: str) -> _OfModel:
        found = self._models.get(model)
        if found is None:
            self._show(model)
            for reason in ("stop", "length"):
                self._sequences.labels(reason, model)
            found = self._models[model] = _OfModel(
                prompt_tokens=self._prompt_tokens.labels(model),
                cached_tokens=self._cached_tokens.labels(model),
                encoded_texts=self._encoded_texts.labels(model),
                generated_tokens=self._generated_tokens.labels(model),
                first_token=self._first_token.labels(model),
                inter_token=self._inter_token.labels(model),
                request_time=self._request_time.labels(model),
                engine_seconds=self._engine_seconds.labels(model),
            )
        return found

    def on_event(self, event: Event) -> None:
        fault_point("observe.metrics")
        match event:
            case TokensGenerated():
                self._of(event.model).generated_tokens.inc(event.count)
            case TokensHanded():
                waits = self._of(event.model).inter_token
                for _ in range(event.count):
                    waits.observe(event.seconds / event.count)
            case RequestReceived():
                self._received.inc()
            case PromptComputed():
                self._of(event.model).prompt_tokens.inc(event.num_prompt_tokens)
                self._of(event.model).cached_tokens.inc(event.num_cached_tokens)
            case FirstToken():
                self._of(event.model).first_token.observe(event.seconds)
            case TextEncoded():
                self._of(event.model).encoded_texts.inc()
                self._of(event.model).prompt_tokens.inc(event.num_tokens)
                self._of(event.model).cached_tokens.inc(event.num_cached_tokens)
            case SequenceEnded():
                self._sequences.labels(event.reason, event.model).inc()
            case RequestEnded():
                self._take_end(event)
            case EngineSample():
                self._of(event.model)
                self._engine.samples[event.model] = event

    def _take_end(self, event: RequestEnded) -> None:
        model, account = event.model, event.account
        self._ended.labels(event.end, model).inc()
        met = self._slo.is_met(account) if event.is_awaited else None
        if met is not None:
            self._slo_requests.labels("yes" if met else "no", model).inc()
        for cause, seconds in account.causes.items():
            self._causes.labels(cause, model).inc(max(seconds, 0.0))
        if account.engine_seconds:
            self._of(model).engine_seconds.inc(account.engine_seconds)
        if event.end is RequestEnd.COMPLETE:
            self._of(model).request_time.observe(account.seconds)
        if (cost := account.cost) is not None:
            if cost.amount is not None:
                self._cost.labels(cost.currency, model).inc(cost.amount)
            if cost.joules is not None:
                self._joules.labels(model).inc(cost.joules)

    def forget_engines(self, known: Set[str]) -> None:
        """Of models that are not loaded any more nothing is told."""
        for name in self._engine.samples.keys() - known:
            del self._engine.samples[name]

    def exposition(self, in_flight: int = 0) -> bytes:
        """`in_flight`: requests for text, as whoever serves them counts them."""
        self._in_flight.set(in_flight)
        return generate_latest(self.registry) + generate_latest(self._vllm_names)


class EngineCollector(Collector):
    """Engines count for themselves; here their last numbers are shown as they are, by the name of the model."""

    def __init__(self) -> None:
        self.samples: dict[str, EngineSample] = {}  # by the model's name

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for sample in self.samples.values():
            for family in _engine_metrics(sample):
                families.setdefault(family.name, family)
                if families[family.name] is not family:
                    families[family.name].samples += family.samples
        return iter(families.values())


def _engine_metrics(sample: EngineSample) -> Iterator[Metric]:
    def family(
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        values: Mapping[tuple[str, ...], float],
        *labels: str,
    ) -> Metric:
        metric = kind(f"trivium_{name}", text, labels=[MODEL, *labels])
        for label_values, value in values.items():
            metric.add_metric([sample.model, *label_values], value)
        return metric

    grammar = sample.grammar
    blocks: dict[tuple[str, ...], float] = {
        ("free",): sample.free_blocks,
        ("held",): sample.held_blocks,
        ("cached",): sample.cached_blocks,
    }
    about_blocks = "KV blocks: free, held by sequences, or held by nobody and kept for reuse (cached)"
    yield family(GaugeMetricFamily, "kv_blocks", about_blocks, blocks, "state")
    prompts: dict[tuple[str, ...], float] = {
        ("cached",): sample.cached_tokens,
        ("computed",): sample.computed_tokens,
        ("left",): sample.left_tokens,
    }
    about_prompts = "Tokens of prompts that began: found in the cache, computed, or left by who ended before"
    yield family(CounterMetricFamily, "begun_prompt_tokens", about_prompts, prompts, "state")
    gauges: Sequence[tuple[str, str, float]] = (
        ("running_sequences", "Sequences that take part in steps", sample.running),
        ("waiting_sequences", "Sequences that wait for room", sample.waiting),
        (
            "overload_grade",
            "What is done about a full queue: 0 open, 1 busy, 2 crowded, 3 full, 4 shut",
            sample.admission.grade.level,
        ),
        ("open_appointments", "Times given to refused requests, not yet kept or missed", sample.admission.appointments),
        ("grammar_preparing_requests", "Requests that wait for their grammar", grammar.preparing),
    )
    for name, text, value in gauges:
        yield family(GaugeMetricFamily, name, text, {(): value})
    counters: Sequence[tuple[str, str, float]] = (
        ("preemptions", "Sequences that had to give their blocks back before their end", sample.preemptions),
        ("evicted_blocks", "Cached KV blocks given up for new ones", sample.evicted_blocks),
        (
            "kv_blocks_taken",
            "KV blocks that were taken; less those freed, the held and cached ones",
            sample.taken_blocks,
        ),
        ("kv_blocks_freed", "KV blocks that became free again", sample.freed_blocks),
        ("kv_moved_bytes", "Bytes of KV blocks that were copied", sample.moved_bytes),
        (
            "recomputed_tokens",
            "Tokens computed again: after a preemption or a failed step, and for further answers to a prompt",
            sample.recomputed_tokens,
        ),
        ("engine_steps", "Steps of the engine", sample.steps),
        ("engine_step_seconds", "Time in steps, planning and sampling with it, summed", sample.step_seconds),
        ("queue_seconds", "Time from arrival to the first step, summed over requests", sample.queue_seconds),
        ("planned_ahead", "Positions planned before their token was known", sample.planned_ahead),
        (
            "failed_steps",
            "Steps that failed as a whole; who had no fault in it was computed again",
            sample.failed_steps,
        ),
        ("discarded", "Positions computed for sequences that had ended meanwhile", sample.discarded),
        ("replayed_steps", "Steps computed by a recorded graph", sample.replayed_steps),
        ("engine_restarts", "Times the engine's process had to be started again", sample.restarts),
        ("grammar_compiled", "Grammars compiled", grammar.compiled),
        ("grammar_refused", "Grammars that are none, are not supported, or went beyond a limit", grammar.refused),
        ("grammar_reused", "Requests whose grammar was known", grammar.reused),
        ("grammar_compile_seconds", "Time to compile the grammars that could be, summed", grammar.compile_seconds),
        ("grammar_mask_wait_seconds", "Time that steps stood still for a mask, summed", grammar.mask_wait_seconds),
        (
            "grammar_late_masks",
            "Times a sequence could not draw with the others, for want of its mask",
            grammar.late_masks,
        ),
    )
    for name, text, value in counters:
        yield family(CounterMetricFamily, name, text, {(): value})
    for name, text, counts in (
        ("held_back", "Times a sequence could not be planned ahead, by reason", sample.held_back),
        ("eager_steps", "Steps computed op by op, by the reason why not by a graph", sample.eager_steps),
        ("put_off_requests", "Requests told to come back later, by the reason", {**sample.admission.put_off}),
    ):
        yield family(CounterMetricFamily, name, text, {(reason,): count for reason, count in counts.items()}, "reason")
    kept: dict[tuple[str, ...], float] = {("kept",): sample.admission.kept, ("missed",): sample.admission.missed}
    about_kept = "Times given to refused requests, by whether they came back then"
    yield family(CounterMetricFamily, "appointments", about_kept, kept, "end")
    for name, text, by_reason in (
        ("op_fallbacks", "Calls of an op that its kernels handed to the slow reference", sample.op_fallbacks),
        ("demotions", "Kernels that were wrong, and were left for slower ones", sample.demotions),
    ):
        counted: dict[tuple[str, ...], float] = {}
        for what, count in by_reason.items():
            op, _, reason = what.partition(": ")
            counted[op, reason] = count
        yield family(CounterMetricFamily, name, f"{text}, by op and reason", counted, "op", "reason")
