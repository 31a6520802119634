"""One request to an OpenAI server, streamed, and the sample of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

import msgspec
from msgspec import Struct

from trivium.bench.errors import BenchError
from trivium.bench.event_stream import EventSplitter
from trivium.bench.http_client import Answer, HttpClient, TransportError
from trivium.bench.samples import Outcome, RequestSample

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}
DETAIL_CHARACTERS = 200
PROBE_SECONDS = 60.0  # for questions about the server itself


class PlannedRequest(Struct, frozen=True):
    index: int
    at_ns: int  # since the start of the run; no meaning in a closed loop
    prompt: str
    prompt_tokens: int  # wanted; the server counts
    output_tokens: int


class AnswerSettings(Struct, frozen=True):
    """What every request of an experiment asks for alike."""

    model: str
    endpoint: Endpoint = "chat"
    temperature: float = 0.0
    ignore_eos: bool = True
    timeout: float = 600.0  # seconds, for one request


class ServedModel(Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _ModelList(Struct):
    data: list[ServedModel]


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        delta = self.delta
        return bool(self.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)))


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class OpenAIClient:
    def __init__(self, http: HttpClient, settings: AnswerSettings) -> None:
        self._http = http
        self._settings = settings
        self._path = http.origin.api_path + PATHS[settings.endpoint]

    def encode(self, request: PlannedRequest) -> bytes:
        settings = self._settings
        body: dict[str, Any] = {
            "model": settings.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": settings.temperature,
            "max_tokens": request.output_tokens,
        }
        if settings.ignore_eos:
            body["ignore_eos"] = True
        if settings.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": request.prompt}]
        else:
            body["prompt"] = request.prompt
        return msgspec.json.encode(body)

    async def send(
        self, request: PlannedRequest, body: bytes, run: int, origin_ns: int, scheduled_ns: int
    ) -> RequestSample:
        """`origin_ns` is the start of the run on the monotonic clock; `scheduled_ns` counts from it. Never raises for what a
        server does."""
        sent_ns = time.monotonic_ns() - origin_ns
        answer = _StreamReading(origin_ns)
        try:
            async with asyncio.timeout(self._settings.timeout), self._http.exchange("POST", self._path, body) as head:
                await answer.read(head)
        except TimeoutError:
            answer.fail(Outcome.TIMEOUT, f"no end within {self._settings.timeout:g} s")
        except TransportError as error:
            answer.fail(error.outcome, str(error))
        usage = answer.usage or _Usage()
        details = usage.prompt_tokens_details or _PromptDetails()
        return RequestSample(
            run=run,
            index=request.index,
            scheduled_ns=scheduled_ns,
            sent_ns=sent_ns,
            ended_ns=answer.ended_ns,
            outcome=answer.outcome,
            text_ns=answer.text_ns,
            status=answer.status,
            detail=answer.detail,
            planned_prompt_tokens=request.prompt_tokens,
            planned_output_tokens=request.output_tokens,
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cached_tokens=details.cached_tokens,
        )


class _StreamReading:
    """What has been seen of one answer so far."""

    def __init__(self, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self._finished = False  # a reason for the end was told
        self.outcome = Outcome.COMPLETE
        self.status: int | None = None
        self.detail: str | None = None
        self.text_ns: list[int] = []
        self.ended_ns = 0
        self.usage: _Usage | None = None

    async def read(self, answer: Answer) -> None:
        self.status = answer.status
        if answer.status != 200:
            body = await answer.read()
            self.fail(Outcome.HTTP_ERROR, body.decode("utf-8", "replace"))
            return
        splitter = EventSplitter()
        done = False
        async for at, data in answer.pieces():
            for event in splitter.feed(data):
                if event == b"[DONE]":
                    done = True
                    self.ended_ns = at - self._origin_ns
                elif not self._take(at - self._origin_ns, event):
                    return
        if not done:
            self.fail(Outcome.CUT, "the stream ended without [DONE]")
        elif not self._finished:
            self.fail(Outcome.CUT, "the stream ended without a reason for it")

    def _take(self, at: int, data: bytes) -> bool:
        """False: nothing that follows matters."""
        try:
            event = _event_decoder.decode(data)
        except msgspec.DecodeError as error:
            self.fail(Outcome.MALFORMED, f"{error}: {data[:80]!r}")
            return False
        if event.error is not None:
            self.fail(Outcome.STREAM_ERROR, msgspec.json.encode(event.error).decode())
            return False
        if event.usage is not None:
            self.usage = event.usage
        for choice in event.choices:
            self._finished = self._finished or choice.finish_reason is not None
            if choice.has_text or (self._finished and not self.text_ns):
                self.text_ns.append(at)
        return True

    def fail(self, outcome: Outcome, detail: str) -> None:
        self.outcome = outcome
        self.detail = detail[:DETAIL_CHARACTERS]
        self.ended_ns = time.monotonic_ns() - self._origin_ns


_event_decoder = msgspec.json.Decoder(_Event)


async def get(http: HttpClient, path: str) -> bytes | None:
    """None: the server does not have it."""
    try:
        async with asyncio.timeout(PROBE_SECONDS), http.exchange("GET", path) as answer:
            body = await answer.read()
            return body if answer.status == 200 else None
    except TimeoutError:
        raise BenchError(f"{http.origin}: no answer to GET {path} within {PROBE_SECONDS:g} s") from None
    except TransportError as error:
        raise BenchError(f"{http.origin}: no server answers there: {error}") from None


async def served_models(http: HttpClient) -> list[ServedModel]:
    body = await get(http, f"{http.origin.api_path}/models")
    try:
        return [] if body is None else msgspec.json.decode(body, type=_ModelList).data
    except msgspec.DecodeError as error:
        raise BenchError(f"{http.origin}: its list of models cannot be read: {error}") from None
