"""The same numbers under the names that vLLM has for them: routers, autoscalers and dashboards look for these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# Ours -> theirs, where both mean the same.
NAMES = {
    "trivium_time_to_first_token_seconds": ("vllm:time_to_first_token_seconds",),
    "trivium_inter_token_seconds": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "trivium_request_seconds": ("vllm:e2e_request_latency_seconds",),
    "trivium_prompt_tokens": ("vllm:prompt_tokens", "vllm:prefix_cache_queries"),
    "trivium_cached_prompt_tokens": ("vllm:prefix_cache_hits",),
    "trivium_generated_tokens": ("vllm:generation_tokens",),
    "trivium_running_sequences": ("vllm:num_requests_running",),
    "trivium_waiting_sequences": ("vllm:num_requests_waiting",),
    "trivium_preemptions": ("vllm:num_preemptions",),
    "trivium_sequences_ended": ("vllm:request_success",),
}
LABELS = {"reason": "finished_reason"}


class VllmNames(Collector):
    def __init__(self, ours: Callable[[], Iterable[Metric]]) -> None:
        self._ours = ours

    def collect(self) -> Iterator[Metric]:
        for metric in list(self._ours()):
            for name in NAMES.get(metric.name, ()):
                yield _renamed(metric, name)
            if metric.name == "trivium_kv_blocks":
                yield _usage(metric)

    def describe(self) -> Iterable[Metric]:
        return ()


def _renamed(metric: Metric, name: str) -> Metric:
    theirs = Metric(name, metric.documentation, metric.type)
    for sample in metric.samples:
        labels = {LABELS.get(label, label): value for label, value in sample.labels.items()}
        theirs.add_sample(sample.name.replace(metric.name, name, 1), labels, sample.value)
    return theirs


def _usage(blocks: Metric) -> Metric:
    """Of KV blocks, the share that sequences hold. What is kept for reuse can be had at any time."""
    usage = GaugeMetricFamily(
        "vllm:kv_cache_usage_perc", "Share of KV blocks that sequences hold, 0 to 1", labels=["model_name"]
    )
    totals: dict[str, float] = {}
    held: dict[str, float] = {}
    for sample in blocks.samples:
        model = sample.labels.get("model_name", "")
        totals[model] = totals.get(model, 0.0) + sample.value
        if sample.labels["state"] == "held":
            held[model] = sample.value
    for model, total in totals.items():
        usage.add_metric([model], held.get(model, 0.0) / total if total else 0.0)
    return usage
