"""POST /v1/chat/completions"""

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
from trivium.serve.body import read_json
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.generation import Job, generate, generate_whole
from trivium.serve.openai.logprobs import TokenShapes, chat_logprobs, prompt_logprobs
from trivium.serve.openai.messages import chat_prompt
from trivium.serve.openai.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatRequest,
    StreamOptions,
    Usage,
)
from trivium.serve.openai.sampling import chat_sampling
from trivium.serve.openai.usage import finish_reason, usage_of
from trivium.serve.sse import EventStreamResponse, event
from trivium.serve.state import ServerState
from trivium.types.errors import NeverFitsError

DECODER = msgspec.json.Decoder(ChatRequest)


async def chat_completions(state: ServerState, request: Request) -> Response | EventStreamResponse:
    body = await read_json(request, DECODER, state.limits)
    state.check_model(body.model)
    sampling = chat_sampling(body, state.limits)
    answer = ChatAnswer(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=body.model or state.llm.card.name,
        top_logprobs=sampling.logprobs,
        shapes=TokenShapes(state.tokenizer, sampling.skip_special_tokens),
    )
    job = Job(answer.id, await chat_prompt(state, body), sampling, body.priority or 0, body.cache_salt or "")
    if body.stream:
        stream = answer.stream(state, job, body.stream_options or StreamOptions())
        return EventStreamResponse(stream, state.limits)
    output = await unless_client_goes(request.receive, _whole(state, job))
    return Response(msgspec.json.encode(answer.whole(output)), media_type="application/json")


async def _whole(state: ServerState, job: Job) -> RequestOutput:
    try:
        (output,) = await generate_whole(state, [job])
    except NeverFitsError as error:
        error.param = "messages"
        raise
    return output


class ChatAnswer(Struct, frozen=True):
    """Writes one request's answer, whole or in chunks; id, time and model are the same in all of it."""

    id: str
    created: int
    model: str
    top_logprobs: int | None  # None: no logprobs asked for
    shapes: TokenShapes

    def whole(self, output: RequestOutput) -> ChatCompletion:
        prompt = output.prompt_logprobs
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(completion) for completion in output.outputs],
            usage=usage_of([output]),
            prompt_logprobs=UNSET if prompt is None else prompt_logprobs(prompt, self.shapes),
        )

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        return ChatChoice(
            index=completion.index,
            message=AssistantMessage(completion.text),
            finish_reason=finish_reason(completion),
            logprobs=self._logprobs(completion.token_ids, completion.logprobs),
            stop_reason=completion.stop_reason,
        )

    def _logprobs(self, tokens: Sequence[int], entries: Sequence[TokenLogprobDict] | None) -> ChatLogprobs | None:
        if self.top_logprobs is None:
            return None
        return chat_logprobs(tokens, entries or (), self.top_logprobs, self.shapes)

    async def stream(self, state: ServerState, job: Job, options: StreamOptions) -> AsyncGenerator[bytes]:
        """First each choice's role, by index; then its text; then, in a chunk of its own, why it ended."""
        usage: UnsetType | None = None if options.include_usage else UNSET
        begun = False
        ended: set[int] = set()
        try:
            async with aclosing(generate(state, job)) as outputs:
                async for output in outputs:
                    chunks = []
                    if not begun:
                        begun = True
                        roles = ChatDelta(role="assistant", content="")
                        chunks += [ChatChunkChoice(index, roles) for index in range(job.sampling.n)]
                    for completion in output.outputs:
                        if completion.index not in ended:
                            chunks += self._news(completion)
                            if completion.finished:
                                ended.add(completion.index)
                    if chunks:
                        now = usage_of([output]) if options.continuous_usage_stats else usage
                        yield b"".join(self._chunk([choice], now) for choice in chunks)
        except NeverFitsError as error:
            error.param = "messages"
            raise
        if options.include_usage:
            yield self._chunk([], usage_of([output]))

    def _news(self, completion: CompletionOutput) -> list[ChatChunkChoice]:
        delta, index = completion.delta, completion.index
        news = []
        logprobs = self._logprobs(delta.token_ids, delta.logprobs) if delta.token_ids else None
        if delta.text or logprobs is not None:
            news.append(ChatChunkChoice(index, ChatDelta(content=delta.text), logprobs))
        if completion.finished:
            end = finish_reason(completion)
            news.append(ChatChunkChoice(index, ChatDelta(), finish_reason=end, stop_reason=completion.stop_reason))
        return news

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> bytes:
        return event(msgspec.json.encode(ChatChunk(self.id, self.created, self.model, choices, usage=usage)))
