"""POST /api/generate and /api/chat"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from trivium.dialects.parts import Content
from trivium.llm.prompts import TokensPrompt
from trivium.records.ids import new_id
from trivium.records.variants import Variant
from trivium.serve.body import read_json
from trivium.serve.chat.chat import open_chat
from trivium.serve.chat.news import ChatNews, ChatUsage, ChoiceNews, Finish
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.errors import invalid
from trivium.serve.generation import Job, generate
from trivium.serve.models.served import ServedModel
from trivium.serve.ollama.answer import AnswerWriter, Said, Stopwatch, line_of
from trivium.serve.ollama.chat_request import of_chat, of_generate, of_raw
from trivium.serve.ollama.lease import model_of, unload, unloads
from trivium.serve.ollama.lines import LineStream, encode_line
from trivium.serve.ollama.names import variant_called
from trivium.serve.ollama.protocol import AnswerRequest, ChatRequest, GenerateRequest, Line
from trivium.serve.openai.logprobs import TokenShapes
from trivium.serve.openai.prompts import completion_prompts
from trivium.serve.openai.protocol import ChatRequest as OpenAIChatRequest
from trivium.serve.openai.sampling import completion_sampling
from trivium.serve.sse import EventStreamResponse
from trivium.serve.state import ServerState
from trivium.serve.visit import enter

GENERATE = msgspec.json.Decoder(GenerateRequest)
CHAT = msgspec.json.Decoder(ChatRequest)


class Answering(Struct, frozen=True):
    """An answer on its way."""

    news: AsyncGenerator[ChatNews]
    shapes: TokenShapes
    prompt: tuple[int, ...] | None = None  # tokens, where the client is told of them to go on from here


async def api_chat(state: ServerState, request: Request) -> Response | EventStreamResponse:
    watch = Stopwatch()
    body = await read_json(request, CHAT, state.limits, type_matters=False)
    variant = await variant_called(state, request, body.model)
    if not body.messages:
        return await _load_or_unload(state, request, body, variant, is_chat=True)
    model = await model_of(state, request, variant, body.keep_alive)
    answering = await _chat(model, of_chat(body, variant, model.dialect))
    return await _answer(state, request, body, answering, watch, is_chat=True)


async def api_generate(state: ServerState, request: Request) -> Response | EventStreamResponse:
    watch = Stopwatch()
    body = await read_json(request, GENERATE, state.limits, type_matters=False)
    variant = await variant_called(state, request, body.model)
    _refuse(body)
    if not body.prompt and not body.suffix:
        return await _load_or_unload(state, request, body, variant, is_chat=False)
    model = await model_of(state, request, variant, body.keep_alive)
    if body.raw or body.suffix:
        answering = await _raw(model, body, variant)
    else:
        answering = await _chat(model, of_generate(body, variant, model.dialect), body.context or [])
    return await _answer(state, request, body, answering, watch, is_chat=False)


def _refuse(body: GenerateRequest) -> None:
    if body.images:
        raise invalid("images are not supported by this model", "images")
    if body.template:
        raise invalid("template cannot be given: the model's own is used, or none with raw", "template")


async def _chat(model: ServedModel, asked: OpenAIChatRequest, context: list[int] | None = None) -> Answering:
    """`context`: tokens of the exchanges before this one; None: nobody wants to go on from here."""
    chat = await open_chat(model, asked, new_id("ollama-"))
    if context is None:
        chat.cut_to_context()
        return Answering(chat.news(), chat.shapes)
    _check_tokens(model, context)
    prompt = chat.job.prompt
    tokens = [*context, *prompt["prompt_token_ids"]]
    going_on = TokensPrompt(prompt=prompt["prompt"], prompt_token_ids=tokens)
    chat = replace(chat, job=replace(chat.job, prompt=going_on))
    chat.cut_to_context()
    return Answering(chat.news(), chat.shapes, tuple(tokens))


def _check_tokens(model: ServedModel, tokens: list[int]) -> None:
    vocab_size = model.card.vocab_size
    if tokens and max(tokens) >= vocab_size:
        raise invalid(f"token id {max(tokens)} is outside the vocabulary of {vocab_size}", "context")


async def _raw(model: ServedModel, body: GenerateRequest, variant: Variant) -> Answering:
    """The text goes on as it is: no template, and nothing is read into the answer."""
    asked = of_raw(body, variant)
    context = model.card.max_model_len
    sampling = completion_sampling(asked, model.limits, n=1, max_tokens=asked.max_tokens or context)
    sampling.max_tokens = asked.max_tokens
    enter(model)
    if body.suffix and model.fill_in_the_middle is not None:
        sampling.stop_token_ids = [*(sampling.stop_token_ids or ()), *model.fill_in_the_middle.end_ids]
    (prompt,) = await completion_prompts(model, asked)
    return Answering(_raw_news(model, Job(new_id("ollama-"), prompt, sampling)), TokenShapes(model.tokenizer, sampling))


async def _raw_news(model: ServedModel, job: Job) -> AsyncGenerator[ChatNews]:
    async with aclosing(generate(model, job)) as outputs:
        async for output in outputs:
            (completion,) = output.outputs
            delta = completion.delta
            finish = None
            if completion.finished:
                finish = Finish("length" if completion.finish_reason == "length" else "stop")
            parts = (Content(delta.text),) if delta.text else ()
            usage = ChatUsage(len(output.prompt_token_ids), output.num_cached_tokens, len(completion.token_ids))
            yield ChatNews((ChoiceNews(0, parts, delta.token_ids, delta.logprobs, finish),), usage)


async def _answer(
    state: ServerState, request: Request, body: AnswerRequest, answering: Answering, watch: Stopwatch, *, is_chat: bool
) -> Response | EventStreamResponse:
    watch.asked()
    told = (body.top_logprobs or 0) if body.logprobs else None
    writer = AnswerWriter(body.model, watch, answering.shapes, is_chat=is_chat, logprobs=told)
    if body.stream is not False:
        return LineStream(_lines(answering, writer), state.limits)
    line = await unless_client_goes(request.receive, _whole(answering, writer))
    return Response(msgspec.json.encode(line), media_type="application/json")


async def _lines(answering: Answering, writer: AnswerWriter) -> AsyncGenerator[bytes]:
    async with aclosing(answering.news) as batches:
        async for news in batches:
            said, finish = writer.take(news)
            if said != Said():
                yield encode_line(writer.line(said))
            if finish is not None:
                yield encode_line(writer.last(Said(), finish, news.usage, _context(answering, writer)))


async def _whole(answering: Answering, writer: AnswerWriter) -> Line:
    whole = Said()
    async with aclosing(answering.news) as batches:
        async for news in batches:
            said, finish = writer.take(news)
            whole += said
    assert finish is not None
    return writer.last(whole, finish, news.usage, _context(answering, writer))


def _context(answering: Answering, writer: AnswerWriter) -> list[int] | None:
    return None if answering.prompt is None else [*answering.prompt, *writer.token_ids]


async def _load_or_unload(
    state: ServerState, request: Request, body: AnswerRequest, variant: Variant, *, is_chat: bool
) -> Response:
    """Nothing is asked: the model is only to be there, or to go."""
    if unloads(body.keep_alive):
        await unload(state, request, variant)
        reason = "unload"
    else:
        await model_of(state, request, variant, body.keep_alive)
        reason = "load"
    line = line_of(body.model, Said(), is_chat=is_chat, done=True, done_reason=reason)
    return Response(msgspec.json.encode(line), media_type="application/json")
