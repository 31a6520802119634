"""POST /v1/completions"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from trivium.llm.outputs import CompletionOutput, RequestOutput, TokenLogprobDict
from trivium.observe.request_account import RequestAccount
from trivium.serve.body import read_json
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.errors import invalid
from trivium.serve.generation import Job, generate_merged, generate_whole
from trivium.serve.limits import Limits
from trivium.serve.models.asked import model_for
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.logprobs import CompletionLogprobsWriter, TokenShapes, prompt_logprobs
from trivium.serve.openai.prompts import completion_prompts
from trivium.serve.openai.protocol import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    StreamOptions,
    Usage,
)
from trivium.serve.openai.sampling import completion_sampling
from trivium.serve.openai.usage import finish_reason, usage_of
from trivium.serve.request_times import answer_metrics
from trivium.serve.sse import EventStreamResponse, event
from trivium.serve.state import ServerState
from trivium.serve.visit import enter

DECODER = msgspec.json.Decoder(CompletionRequest)
DEFAULT_MAX_TOKENS = 16


async def completions(state: ServerState, request: Request) -> Response | EventStreamResponse:
    body = await read_json(request, DECODER, state.limits)
    _check(body)
    model = await model_for(state, request, body.model)
    num_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    n = body.n or 1
    # The engine draws at least one token; where none is wanted it is dropped.
    sampling = completion_sampling(body, state.limits, n=body.best_of or n, max_tokens=max(num_tokens, 1))
    enter(model, body.priority)
    if body.suffix and model.fill_in_the_middle is not None:
        sampling.stop_token_ids = [*(sampling.stop_token_ids or ()), *model.fill_in_the_middle.end_ids]
    prompts = await completion_prompts(model, body)
    _check_choices(len(prompts) * sampling.n, state.limits)
    answer = CompletionAnswer(
        id=f"cmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=body.model or model.name,
        n=n,
        echo=bool(body.echo),
        drops_tokens=num_tokens == 0,
        logprobs=body.logprobs,
        tells_prompt_logprobs=body.prompt_logprobs is not None,
        tells_metrics=body.include_metrics is True,
        shapes=TokenShapes(model.tokenizer, sampling),
    )
    jobs = [
        Job(f"{answer.id}-{number}", prompt, sampling, body.priority, body.cache_salt or "")
        for number, prompt in enumerate(prompts)
    ]
    if body.stream:
        stream = answer.stream(model, jobs, body.stream_options or StreamOptions())
        return EventStreamResponse(stream, state.limits)
    outputs = await unless_client_goes(request.receive, generate_whole(model, jobs))
    metrics = await answer_metrics() if answer.tells_metrics else UNSET
    return Response(msgspec.json.encode(answer.whole(outputs, metrics)), media_type="application/json")


def _check(request: CompletionRequest) -> None:
    if request.suffix and request.echo:
        raise invalid("echo and suffix exclude each other: the answer stands between the two", "suffix")
    if request.best_of is not None:
        if request.best_of < (request.n or 1):
            raise invalid(f"best_of must be at least n, but is {request.best_of} < {request.n}", "best_of")
        if request.stream and request.best_of > (request.n or 1):
            raise invalid("best_of cannot be streamed: the best is known only at the end", "best_of")


def _check_choices(count: int, limits: Limits) -> None:
    if count > limits.choices:
        raise invalid(f"a request may ask for {limits.choices} answers at most, but asks for {count}", "n")


class CompletionAnswer(Struct, frozen=True):
    """Writes one request's answer, whole or in chunks. A choice's index is its prompt's number x n + its own."""

    id: str
    created: int
    model: str
    n: int
    echo: bool
    drops_tokens: bool  # max_tokens was 0
    logprobs: int | None
    tells_prompt_logprobs: bool
    tells_metrics: bool
    shapes: TokenShapes

    def whole(self, outputs: Sequence[RequestOutput], metrics: RequestAccount | UnsetType) -> Completion:
        choices = [
            self._choice(number * self.n + rank, output, completion)
            for number, output in enumerate(outputs)
            for rank, completion in enumerate(self._best(output))
        ]
        return Completion(self.id, self.created, self.model, choices, usage=self._usage(outputs), metrics=metrics)

    def _best(self, output: RequestOutput) -> Sequence[CompletionOutput]:
        """All answers, or with best_of the n whose tokens are likeliest on average, the best first."""
        if len(output.outputs) == self.n:
            return output.outputs
        return sorted(output.outputs, key=_mean_logprob, reverse=True)[: self.n]

    def _usage(self, outputs: Sequence[RequestOutput]) -> Usage:
        return usage_of(outputs, completion_tokens=0 if self.drops_tokens else None)

    def _choice(self, index: int, output: RequestOutput, completion: CompletionOutput) -> CompletionChoice:
        writer = ChoiceWriter(self, output)
        head = writer.prompt()
        tail = writer.piece(completion.text, completion.token_ids, completion.logprobs or ())
        prompt = output.prompt_logprobs if self.tells_prompt_logprobs else None
        return CompletionChoice(
            index=index,
            text=head.text + tail.text,
            logprobs=_joined(head.logprobs, tail.logprobs),
            finish_reason="length" if self.drops_tokens else finish_reason(completion),
            stop_reason=None if self.drops_tokens else completion.stop_reason,
            prompt_logprobs=UNSET if prompt is None else prompt_logprobs(prompt, self.shapes),
        )

    async def stream(self, model: ServedModel, jobs: Sequence[Job], options: StreamOptions) -> AsyncGenerator[bytes]:
        usage: UnsetType | None = None if options.include_usage else UNSET
        writers: dict[int, ChoiceWriter] = {}
        ended: set[int] = set()
        last: dict[int, RequestOutput] = {}
        async with aclosing(generate_merged(model, jobs)) as outputs:
            async for number, output in outputs:
                last[number] = output
                choices = []
                for completion in output.outputs:
                    index = number * self.n + completion.index
                    if index in ended or not (completion.delta or completion.finished):
                        continue
                    if index not in writers:
                        writers[index] = ChoiceWriter(self, output)
                        choices += writers[index].prompt().chunks(index)
                    delta = completion.delta
                    choices += writers[index].piece(delta.text, delta.token_ids, delta.logprobs).chunks(index)
                    if completion.finished:
                        ended.add(index)
                        choices.append(self._end(index, completion))
                if choices:
                    now = self._usage(list(last.values())) if options.continuous_usage_stats else usage
                    yield b"".join(self._chunk([choice], now) for choice in choices)
        if options.include_usage or self.tells_metrics:
            metrics = await answer_metrics() if self.tells_metrics else UNSET
            yield self._chunk([], self._usage(list(last.values())) if options.include_usage else UNSET, metrics)

    def _end(self, index: int, completion: CompletionOutput) -> CompletionChoice:
        if self.drops_tokens:
            return CompletionChoice(index, "", finish_reason="length", stop_reason=None)
        return CompletionChoice(index, "", finish_reason=finish_reason(completion), stop_reason=completion.stop_reason)

    def _chunk(
        self,
        choices: list[CompletionChoice],
        usage: Usage | UnsetType | None,
        metrics: RequestAccount | UnsetType = UNSET,
    ) -> bytes:
        chunk = Completion(self.id, self.created, self.model, choices, usage=usage, metrics=metrics)
        return event(msgspec.json.encode(chunk))


class Piece(Struct, frozen=True):
    """Some of a choice's text, with the log probabilities of its tokens where they were asked for."""

    text: str = ""
    logprobs: CompletionLogprobs | None = None

    def chunks(self, index: int) -> list[CompletionChoice]:
        if not self.text and self.logprobs is None:
            return []
        return [CompletionChoice(index, self.text, self.logprobs)]


class ChoiceWriter:
    """Writes one choice from its beginning to its end: the prompt where it is echoed, then the answer."""

    def __init__(self, answer: CompletionAnswer, output: RequestOutput) -> None:
        self._answer = answer
        self._output = output  # at its first token or later, when all is known of the prompt
        self._writer = None if answer.logprobs is None else CompletionLogprobsWriter(answer.logprobs, answer.shapes)

    def prompt(self) -> Piece:
        if not self._answer.echo:
            return Piece()
        text = self._output.prompt or ""
        if self._writer is None:
            return Piece(text)
        entries = self._output.prompt_logprobs or [None] * len(self._output.prompt_token_ids)
        return Piece(text, self._writer.write_prompt(text, self._output.prompt_token_ids, entries))

    def piece(self, text: str, tokens: Sequence[int], entries: Sequence[TokenLogprobDict]) -> Piece:
        if self._answer.drops_tokens or not (text or tokens):
            return Piece()
        return Piece(text, None if self._writer is None else self._writer.write(tokens, entries))


def _joined(head: CompletionLogprobs | None, tail: CompletionLogprobs | None) -> CompletionLogprobs | None:
    if head is None or tail is None:
        return head or tail
    return CompletionLogprobs(
        head.tokens + tail.tokens,
        head.token_logprobs + tail.token_logprobs,
        head.top_logprobs + tail.top_logprobs,
        head.text_offset + tail.text_offset,
    )


def _mean_logprob(completion: CompletionOutput) -> float:
    return (completion.cumulative_logprob or 0.0) / max(len(completion.token_ids), 1)
