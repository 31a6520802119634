"""How much a chat's model may reason: asked for by effort, by a budget of tokens, or not at all."""

from __future__ import annotations

from typing import Any

from trivium.dialects.dialect import Dialect
from trivium.llm.params import ThinkingLimit
from trivium.serve.errors import invalid
from trivium.serve.openai.protocol import ChatRequest
from trivium.text.tokenizer import Tokenizer

# Tokens of reasoning, for models whose chat template knows nothing of efforts. None: as many as it takes.
BUDGETS: dict[str, int | None] = {
    "none": 0,
    "minimal": 256,
    "low": 1024,
    "medium": 8192,
    "high": None,
    "xhigh": None,
    "max": None,
}


def effort_of(request: ChatRequest) -> str | None:
    effort = request.reasoning_effort
    if effort is None and request.reasoning is not None:
        effort = "none" if request.reasoning.enabled is False else request.reasoning.effort
    if effort is not None and effort not in BUDGETS:
        raise invalid(
            f"reasoning_effort must be one of {', '.join(BUDGETS)}, but is {effort[:80]!r}", "reasoning_effort"
        )
    return effort


def template_kwargs(request: ChatRequest) -> dict[str, Any]:
    """What templates look at, by the names of several families."""
    effort = effort_of(request)
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False, "thinking": False}
    return {"reasoning_effort": effort, "enable_thinking": True, "thinking": True}


def thinking_limit(
    request: ChatRequest, dialect: Dialect, template: str, *, in_reasoning: bool
) -> ThinkingLimit | None:
    """`template`: the source of the chat template. `in_reasoning`: the prompt ends inside of reasoning."""
    most = _budget(request, knows_effort="reasoning_effort" in template)
    marks = dialect.reasoning
    if most is None or marks is None:
        return None
    return ThinkingLimit(most, None if in_reasoning else marks.start, marks.end, marks.goes_on)


def know_marks(limit: ThinkingLimit, tokenizer: Tokenizer) -> None:
    """The tokenizer keeps what it found."""
    for mark in filter(None, (limit.begin, limit.end)):
        tokenizer.mark(mark)


def tells_reasoning(request: ChatRequest) -> bool:
    return request.include_reasoning is not False and not (request.reasoning and request.reasoning.exclude)


def _budget(request: ChatRequest, *, knows_effort: bool) -> int | None:
    asked = request.reasoning.max_tokens if request.reasoning is not None else None
    for budget in (request.thinking_token_budget, request.thinking_budget, asked):
        if budget is not None:
            return budget
    effort = effort_of(request)
    if effort is None or (knows_effort and effort != "none"):
        return None
    return BUDGETS[effort]
