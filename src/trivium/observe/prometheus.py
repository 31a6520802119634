"""Prometheus metrics: each name has one meaning, written in its help text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trivium.faults import fault_point
from trivium.observe.events import (
    EngineSample,
    Event,
    FirstToken,
    RequestEnded,
    RequestReceived,
    SequenceEnded,
    TextEncoded,
    TokensGenerated,
)
from trivium.observe.request_account import MEANINGS
from trivium.observe.request_end import RequestEnd
from trivium.observe.vllm_names import VllmNames

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Seconds. About three for each factor of ten: from a step of a small model to a long prompt on a CPU.
FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
INTER_TOKEN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
REQUEST_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics:
    """Counts what is heard as events, and shows what the engine said of itself when it was last asked."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._received = Counter(
            "trivium_requests_received",
            "Requests for text that came in; each ends in exactly one way",
            registry=registry,
        )
        self._ended = Counter(
            "trivium_requests_ended", "Requests for text, by how they ended", ["end"], registry=registry
        )
        for end in RequestEnd:
            self._ended.labels(end)
        self._in_flight = Gauge(
            "trivium_requests_in_flight", "Requests for text that came in and have not ended", registry=registry
        )
        self._sequences = Counter(
            "trivium_sequences_ended", "Answers that came to their end, by its reason", ["reason"], registry=registry
        )
        for reason in ("stop", "length"):
            self._sequences.labels(reason)
        self._prompt_tokens = Counter(
            "trivium_prompt_tokens",
            "Tokens of prompts that were processed, found in the cache or not",
            registry=registry,
        )
        self._cached_tokens = Counter(
            "trivium_cached_prompt_tokens", "Tokens of prompts whose keys and values were found", registry=registry
        )
        self._encoded_texts = Counter(
            "trivium_encoded_texts",
            "Texts, and pairs of them, that became vectors or scores",
            registry=registry,
        )
        self._generated_tokens = Counter("trivium_generated_tokens", "Tokens sampled", registry=registry)
        self._first_token = Histogram(
            "trivium_time_to_first_token_seconds",
            "From a prompt's hand-over to the engine to the first token of its answer",
            buckets=FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self._inter_token = Histogram(
            "trivium_inter_token_seconds",
            "Between tokens of one sequence; tokens that come together share their wait",
            buckets=INTER_TOKEN_BUCKETS,
            registry=registry,
        )
        self._request_time = Histogram(
            "trivium_request_seconds",
            "From a request's arrival to the end of its answer, for those that completed",
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )

        self._causes = Counter(
            "trivium_request_cause_seconds",
            "Where the time of requests went, whatever their end; over all causes that is the time of all requests",
            ["cause"],
            registry=registry,
        )
        for cause in MEANINGS:
            self._causes.labels(cause)
        self._engine_seconds = Counter(
            "trivium_request_engine_seconds",
            "Of the engine's steps, the shares of requests that ended",
            registry=registry,
        )

        self._engine = EngineCollector()
        registry.register(self._engine)
        self._vllm_names = CollectorRegistry()
        self._vllm_names.register(VllmNames(registry.collect))

    def on_event(self, event: Event) -> None:
        fault_point("observe.metrics")
        match event:
            case TokensGenerated():
                self._generated_tokens.inc(event.count)
                if event.seconds is not None:
                    for _ in range(event.count):
                        self._inter_token.observe(event.seconds / event.count)
            case RequestReceived():
                self._received.inc()
            case FirstToken():
                self._prompt_tokens.inc(event.num_prompt_tokens)
                self._cached_tokens.inc(event.num_cached_tokens)
                self._first_token.observe(event.seconds)
            case TextEncoded():
                self._encoded_texts.inc()
                self._prompt_tokens.inc(event.num_tokens)
                self._cached_tokens.inc(event.num_cached_tokens)
            case SequenceEnded():
                self._sequences.labels(event.reason).inc()
            case RequestEnded():
                self._ended.labels(event.end).inc()
                for cause, seconds in event.account.causes.items():
                    self._causes.labels(cause).inc(max(seconds, 0.0))
                self._engine_seconds.inc(event.account.engine_seconds)
                if event.end is RequestEnd.COMPLETE:
                    self._request_time.observe(event.seconds)
            case EngineSample():
                self._engine.samples[event.model] = event

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
        metric = kind(f"trivium_{name}", text, labels=["model_name", *labels])
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
