"""What both routes say at the end of an answer: its tokens, counted, and why it ended."""

from __future__ import annotations

from collections.abc import Iterable

from trivium.llm.outputs import CompletionOutput, RequestOutput
from trivium.serve.chat.news import ChatUsage
from trivium.serve.openai.protocol import CompletionTokensDetails, PromptTokensDetails, Usage


def usage_of(outputs: Iterable[RequestOutput], *, completion_tokens: int | None = None) -> Usage:
    """Each prompt counts once, whatever its number of answers; the answers' tokens sum up unless they are given."""
    outputs = list(outputs)
    prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    if completion_tokens is None:
        completion_tokens = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    cached = sum(output.num_cached_tokens for output in outputs)
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, PromptTokensDetails(cached))


def usage_of_chat(usage: ChatUsage) -> Usage:
    return Usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        PromptTokensDetails(usage.cached_tokens),
        CompletionTokensDetails(usage.reasoning_tokens),
    )


def finish_reason(completion: CompletionOutput) -> str:
    """In OpenAI's words, which have none for an answer that was aborted."""
    return "length" if completion.finish_reason == "length" else "stop"
