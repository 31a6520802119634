"""What the server says of itself once it is ready: the models, the room, the kernels, and how to try it."""

from __future__ import annotations

from collections.abc import Iterator

from trivium.commands.report_lines import choice_lines, kernel_lines, short_memory_line
from trivium.dialects.dialect import Dialect
from trivium.types.card import ModelCard


def model_report(card: ModelCard, dialect: Dialect | None) -> Iterator[str]:
    yield f"model     {card.name} ({card.family}, {card.dtype}), context {card.max_model_len} tokens"
    if card.task == "generate":
        tokens = card.num_blocks // card.num_kv_groups * card.block_size
        yield f"KV cache  {card.num_blocks} blocks of {card.block_size} tokens, {card.kv_cache_dtype}, room for {tokens} tokens"
    report = card.report
    yield from kernel_lines(report)
    yield f"graph     {card.graph}"
    if report.happened is not None and report.happened.packed:
        yield f"weights   {report.happened.packed}"
    if report.memory:
        yield short_memory_line(report)
    if dialect is not None and card.task == "generate":
        marks = f"between {dialect.reasoning.start} and {dialect.reasoning.end}" if dialect.reasoning else "not marked"
        yield f"dialect   tool calls as {dialect.name}, reasoning {marks}"
    yield from choice_lines(report)


def ready_report(card: ModelCard, url: str, seconds: float, *, needs_key: bool = False) -> Iterator[str]:
    """`card`: of the model that the example asks."""
    yield f"ready     {url} after {seconds:.1f} s; open it in a browser, or try:"
    route, body = _example(card)
    yield f"  curl {url}{route} -H 'content-type: application/json' \\"
    if needs_key:
        yield "    -H 'authorization: Bearer <key>' \\"
    yield f"    -d '{body}'"


def _example(card: ModelCard) -> tuple[str, str]:
    """A route and what to send there."""
    match card.task:
        case "embed":
            return "/v1/embeddings", f'{{"model": "{card.name}", "input": ["Hello!", "Good day"]}}'
        case "score":
            asked = '"query": "capital of France", "documents": ["Paris", "bananas"]'
            return "/v1/rerank", f'{{"model": "{card.name}", {asked}}}'
        case "generate":
            message = '{"role": "user", "content": "Hello!"}'
            return "/v1/chat/completions", f'{{"model": "{card.name}", "messages": [{message}], "stream": true}}'
