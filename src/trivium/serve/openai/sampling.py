"""From the fields of a request to the engine's sampling parameters, with what we do not have refused by name."""

from __future__ import annotations

from typing import Any

from trivium.llm.params import SamplingParams
from trivium.serve.errors import invalid
from trivium.serve.limits import Limits
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.protocol import ChatRequest, CompletionRequest, GenerationRequest
from trivium.serve.openai.structured import structured_outputs

# Fields that mean the same on both sides.
PASSED = (
    "temperature",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "prompt_logprobs",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "truncate_prompt_tokens",
    "bad_words",
    "allowed_token_ids",
    "logit_bias",
)

UNSUPPORTED = (
    "use_beam_search",
    "logits_processors",
    "lora_path",
    "audio",
    "chat_template",
    "prompt_embeds",
)

# OpenAI allows top_p 0, which leaves the likeliest token alone; so does this, in float32 too.
SMALLEST_TOP_P = 1e-9


def sampling_params(
    request: GenerationRequest, limits: Limits, *, n: int, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    refuse_unsupported(request)
    check_sizes(request, limits)
    given: dict[str, Any] = {name: value for name in PASSED if (value := getattr(request, name)) is not None}
    if request.top_p == 0:
        given["top_p"] = SMALLEST_TOP_P
    given["structured_outputs"] = structured_outputs(request)
    return SamplingParams(n=n, max_tokens=max_tokens, logprobs=logprobs, **given)


def refuse_unsupported(request: GenerationRequest) -> None:
    for field in UNSUPPORTED:
        if getattr(request, field, None) not in (None, False):
            raise invalid(f"{field} is not supported by this server", field, "unsupported_parameter")
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options may only be given with stream: true", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise invalid("prompt_logprobs cannot be streamed; ask without stream", "prompt_logprobs")


def check_sizes(request: GenerationRequest, limits: Limits) -> None:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop
    for field, values, most in (
        ("stop", stops, limits.stop_strings),
        ("stop_token_ids", request.stop_token_ids, limits.stop_token_ids),
        ("bad_words", request.bad_words, limits.bad_words),
        ("logit_bias", request.logit_bias, limits.logit_bias),
    ):
        if values is not None and len(values) > most:
            raise invalid(f"{field} may have {most} entries at most, but has {len(values)}", field)
    for field, texts, most in (
        ("stop", stops, limits.stop_string_chars),
        ("bad_words", request.bad_words, limits.bad_word_chars),
    ):
        longest = max((len(text) for text in texts or ()), default=0)
        if longest > most:
            raise invalid(f"a string in {field} may have {most} characters at most, but one has {longest}", field)


def chat_sampling(request: ChatRequest, model: ServedModel) -> SamplingParams:
    if request.modalities is not None and any(modality != "text" for modality in request.modalities):
        raise invalid("this server answers with text only", "modalities", "unsupported_parameter")
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs may only be given with logprobs: true", "top_logprobs")
    field = "max_completion_tokens" if request.max_completion_tokens is not None else "max_tokens"
    max_tokens = getattr(request, field)
    if max_tokens == 0:
        raise invalid(f"{field} must be at least 1", field)
    params = sampling_params(
        request,
        model.limits,
        n=request.n or 1,
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )
    params.shown_special_tokens = _marks(model)
    return params


def _marks(model: ServedModel) -> list[int]:
    """The tokens that the dialect looks for in the text."""
    ids = (model.tokenizer.token_id(mark) for mark in model.dialect.marks)
    return [id for id in ids if id is not None]


def completion_sampling(request: CompletionRequest, limits: Limits, *, n: int, max_tokens: int) -> SamplingParams:
    """`max_tokens` may not be 0 here: the engine draws at least one token, which the caller may drop."""
    params = sampling_params(request, limits, n=n, max_tokens=max_tokens, logprobs=request.logprobs)
    if request.echo and request.logprobs is not None:
        params.prompt_logprobs = max(request.logprobs, params.prompt_logprobs or 0)
    if n > (request.n or 1) and request.logprobs is None:
        params.logprobs = 0  # the best of them is found by these
    return params
