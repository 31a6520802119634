"""One response on its way: from a request that was checked to events, and into the records."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from trivium.faults import fault_point
from trivium.records.ids import new_id
from trivium.records.responses import StoredResponse
from trivium.serve.chat.chat import Chat, open_chat
from trivium.serve.chat.news import ChoiceNews
from trivium.serve.errors import as_api_error, invalid
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.logprobs import chat_logprobs
from trivium.serve.openai.metadata import check_metadata
from trivium.serve.openai.protocol import TokenLogprob
from trivium.serve.responses.chat_request import ENCRYPTED_REASONING, chat_request, clients_names
from trivium.serve.responses.context import Context, read_context, stored_items, truncated
from trivium.serve.responses.protocol import (
    ConversationId,
    CreateResponse,
    Event,
    ResponseObject,
    ShownReasoning,
    ShownText,
    TextFormat,
)
from trivium.serve.responses.writer import ResponseWriter
from trivium.serve.state import ServerState

SECONDS_KEPT = 30 * 24 * 3600  # so does OpenAI


async def open_response(state: ServerState, model: ServedModel, request: CreateResponse) -> ResponseMaker:
    """Everything that can be wrong with the request is raised here, but for what the engine says of its length."""
    check_metadata(request.metadata, state.limits)
    if request.background and request.store is False:
        raise invalid("background needs store: what is not kept cannot be come back for", "background")
    with clients_names():
        context = await read_context(state, request)
        asked = chat_request(request, [*context.history, *context.input])
        if request.truncation == "auto":
            asked = await truncated(model, asked)
        chat = await open_chat(model, asked, new_id("resp_"))
    return ResponseMaker(state, chat, _new(request, chat, context), context, request)


def _new(request: CreateResponse, chat: Chat, context: Context) -> ResponseObject:
    """The response before anything has been said, with every setting as it holds."""
    reasoning = request.reasoning
    text = request.text
    return ResponseObject(
        id=chat.id,
        created_at=chat.created,
        status="queued" if request.background else "in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        model=chat.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        conversation=None if context.conversation_id is None else ConversationId(context.conversation_id),
        prompt_cache_key=request.prompt_cache_key,
        reasoning=ShownReasoning(reasoning.effort, reasoning.summary) if reasoning else ShownReasoning(),
        safety_identifier=request.safety_identifier,
        store=request.store is not False,
        temperature=1.0 if request.temperature is None else request.temperature,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        text=ShownText((text and text.format) or TextFormat(), (text and text.verbosity) or "medium"),
        tool_choice="auto" if request.tool_choice is None else request.tool_choice,
        tools=request.tools or [],
        top_logprobs=request.top_logprobs or 0,
        top_p=1.0 if request.top_p is None else request.top_p,
        truncation=request.truncation or "disabled",
        user=msgspec.UNSET if request.user is None else request.user,
        metadata=request.metadata or {},
    )


class ResponseMaker:
    """Either `events` or `whole` is used, once."""

    def __init__(
        self, state: ServerState, chat: Chat, response: ResponseObject, context: Context, request: CreateResponse
    ) -> None:
        self._state = state
        self._chat = chat
        self._context = context
        self._records = state.records.responses
        keeps_reasoning = ENCRYPTED_REASONING in (request.include or ())
        self.writer = ResponseWriter(response, keeps_reasoning=keeps_reasoning)
        self._begun = False
        self._is_kept = False  # a record of it exists
        self.is_streamed = bool(request.stream)
        self.failure_events: list[Event] = []  # those that tell of its failure, once it has failed

    @property
    def response(self) -> ResponseObject:
        return self.writer.response

    async def whole(self) -> ResponseObject:
        async with aclosing(self.events()) as batches:
            async for _ in batches:
                pass
        return self.response

    async def events(self) -> AsyncGenerator[list[Event]]:
        """As they come; the first ones with the first token, so that what fails until then is no response at all.

        A failure after that is raised too, and `failure_events` tell of it. The last events come after the response
        was written to the records: a client that has seen them can go on from there.
        """
        try:
            async with aclosing(self._chat.news()) as batches:
                async for news in batches:
                    events: list[Event] = []
                    if not self._begun:
                        self._begun = True
                        if self.response.status != "queued":
                            events += self.writer.created()
                        events += self.writer.in_progress()
                    (choice,) = news.choices
                    events += self.writer.news(choice, self._logprobs(choice))
                    if choice.finish is not None:
                        events += self.writer.finished(choice.finish, news.usage)
                        if not self.response.background:
                            await self.keep()
                    yield events
        except Exception as error:
            with clients_names():
                if not self._begun and self.response.status != "queued":
                    raise
                failure = as_api_error(error, self._chat.id)
            self.failure_events = self.writer.failed(failure)
            if not self.response.background:
                await self.keep()
            raise failure from error

    def _logprobs(self, news: ChoiceNews) -> Sequence[TokenLogprob]:
        k = self._chat.job.sampling.logprobs
        if k is None or not news.token_ids:
            return ()
        return chat_logprobs(news.token_ids, news.logprobs, k, self._chat.shapes).content

    # Records

    async def keep_input(self) -> None:
        self._is_kept = True
        await self._records.add(
            self._stored(),
            seconds=SECONDS_KEPT,
            previous_id=self.response.previous_response_id,
            items=stored_items(self._context.input),
        )

    async def keep(self, frames: Sequence[bytes] | None = None) -> None:
        """The response as it now is, for good; `frames` are its stream's, where it can be asked for again."""
        fault_point("responses.keep")
        said = stored_items(self.response.output)
        conversation_id = self._context.conversation_id
        if self.response.status not in ("completed", "incomplete"):
            conversation_id = None
        items = [*stored_items(self._context.input), *said] if conversation_id is not None else []
        if not self.response.store:
            if conversation_id is not None:
                await self._state.records.conversations.add_items(conversation_id, items)
            return
        events = None if frames is None else zlib.compress(b"".join(frames))
        finish = self._records.finish(self._stored(events), said, conversation_id, items)
        if self._is_kept:
            await finish
        else:  # both in one commit
            await asyncio.gather(self.keep_input(), finish)

    def _stored(self, events: bytes | None = None) -> StoredResponse:
        response = self.response
        return StoredResponse(response.id, response.status, msgspec.json.encode(response), events)


def frame(event: Event) -> bytes:
    """Named, as this API has it, and on one line."""
    return b"event: " + event.type.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def frames_of(stored: bytes) -> list[bytes]:
    """Those that `ResponseMaker.keep` was given."""
    return [part + b"\n\n" for part in zlib.decompress(stored).split(b"\n\n")[:-1]]
