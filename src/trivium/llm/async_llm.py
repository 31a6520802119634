"""The engine for asyncio programs: prompts in, growing answers out."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from trivium.engine.admission import Place
from trivium.engine.client import EngineClient, EngineState, Health, Supervision
from trivium.engine.messages import Stats
from trivium.engine.request_stream import RequestStream
from trivium.llm.beam_search import beam_search
from trivium.llm.collect import Collector
from trivium.llm.keywords import read_options
from trivium.llm.lower import LoweredPrompt, lower_pooling, lower_prompt, lower_request
from trivium.llm.outputs import BeamSearchOutput, EmbeddingOutput, RequestOutput
from trivium.llm.params import BeamSearchParams, SamplingParams
from trivium.llm.prompts import Prompt, TokensPrompt
from trivium.llm.text_side import read_text_side
from trivium.store import ModelStore
from trivium.text.template import ChatTemplate
from trivium.text.tokenizer import Tokenizer
from trivium.types.card import ModelCard
from trivium.types.errors import EngineDeadError, InvalidRequestError
from trivium.types.overload import AdmissionStats
from trivium.types.request import Request
from trivium.types.start_progress import StartProgress

# Above it, tokenizing takes long enough (milliseconds) that other requests should not wait for it.
LONG_TEXT = 20_000  # characters

log = logging.getLogger(__name__)


class AsyncLLM:
    """`async with AsyncLLM(model) as llm:`, or `await llm.start()` … `await llm.close()`."""

    def __init__(self, model: str, *, supervision: Supervision | None = None, **options: Any) -> None:
        """`options` are those of config.options.EngineOptions; of vLLM's, those that mean nothing here are ignored."""
        self.options = read_options(model, options)
        self._supervision = supervision
        self._client: EngineClient | None = None
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None
        self._seeds = random.Random(self.options.seed)
        self._starting = asyncio.Lock()
        self._started = False
        self._closed = False

    # Life

    async def start(self) -> None:
        """Until the engine is ready. Raises the TriviumError that kept it from it."""
        async with self._starting:
            if self._closed:
                raise EngineDeadError("the engine was closed")
            if self._started:
                return
            path = await asyncio.to_thread(ModelStore().resolve, self.options.model)
            name = self.options.served_model_name or name_of(self.options.model, path)
            options = msgspec.structs.replace(self.options, model=str(path), served_model_name=name)
            self._client = EngineClient(options, supervision=self._supervision)
            try:
                async with asyncio.TaskGroup() as group:  # the text side is read while the engine's process loads
                    group.create_task(self._client.start())
                    if not self.options.skip_tokenizer_init:
                        group.create_task(self._read_text_side(path))
            except ExceptionGroup as errors:
                await self._client.close()
                raise errors.exceptions[0] from None
            if self.card.task == "generate" and self._template is not None and not self._template.is_own:
                log.warning("%s has no chat template of its own: chats are written as ChatML", name)
            self._started = True

    async def _read_text_side(self, path: Path) -> None:
        self._tokenizer, self._template = await asyncio.to_thread(read_text_side, path)

    async def __aenter__(self) -> AsyncLLM:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def drain(self, timeout: float | None = None) -> None:
        """Refuse new requests and wait until those under way have ended, or end them after `timeout` seconds."""
        if self._client is not None:
            await self._client.drain(timeout)
        self._closed = True

    def drain_on_sigterm(self, timeout: float | None = None) -> None:
        """For programs without a handling of SIGTERM of their own; call it inside the loop, after `start`."""
        self._running_client.drain_on_sigterm(timeout)

    async def close(self) -> None:
        """Requests under way end with EngineDeadError."""
        self._closed = True
        if self._client is not None:
            await self._client.close()

    # Requests

    def knock(self, priority: int, visitor: int | None = None) -> Place:
        """A place in the queue before any work goes into a request, or OverloadedError: when to come back. `visitor`: a
        number that is the same when the same is asked again."""
        return self._running_client.knock(priority, visitor)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        salt: str = "",
        place: Place | None = None,
        watch: Callable[[RequestStream], None] = lambda stream: None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answers as they grow; each output is the whole state, and each completion's `delta` what is new in it.
        `watch` is shown what the engine has of the request, which may outlast the iteration.

        What is wrong with the request, or refused by the engine, is raised at the first step of the iteration, before
        any output. Leaving the iteration (break, aclose, a cancelled task) gives back all that the request holds.
        `place`: where one was had by `knock`.
        """
        params = sampling_params or SamplingParams()
        await self.start()
        lowered = await self._lower_prompt(prompt)
        request = self._lower(lowered, params, request_id, priority, salt)
        collector = Collector(request, lowered.text, params, self._tokenizer)
        stream = await self._running_client.submit(request, place)
        watch(stream)
        try:
            while deltas := await stream.batch():
                for index in collector.take(deltas):
                    stream.cancel(index)
                if collector.has_news:
                    yield collector.output()
        finally:
            stream.close()

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """`generate` over the messages rendered by the model's chat template."""
        await self.start()
        prompt = self.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            chat_template_kwargs=chat_template_kwargs,
        )
        outputs = self.generate(prompt, sampling_params, request_id, priority=priority, salt=salt)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> TokensPrompt:
        """The prompt that `chat` would send: its text and its tokens."""
        if self._template is None or self._tokenizer is None:
            raise InvalidRequestError(
                "messages need the tokenizer, and skip_tokenizer_init left it out", param="messages"
            )
        text = self._template.render(messages, tools, add_generation_prompt, **(chat_template_kwargs or {}))
        # The template writes the special tokens out, the one at the beginning too.
        return {"prompt": text, "prompt_token_ids": self._tokenizer.encode(text, add_special_tokens=False)}

    async def complete_all(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Sequence[SamplingParams],
        *,
        priorities: Sequence[int] | None = None,
        on_output: Callable[[RequestOutput], None] = lambda output: None,
    ) -> list[RequestOutput]:
        """The finished outputs of many prompts, in their order; cheaper than `generate` for each, as nothing wakes up
        before a request's end. All are checked before the first is sent. `on_output` is told of each as it ends.
        """
        await self.start()
        lowered = [await self._lower_prompt(prompt) for prompt in prompts]
        requests = [
            self._lower(prompt, params, priority=priority)
            for prompt, params, priority in zip(lowered, sampling_params, priorities or [0] * len(lowered), strict=True)
        ]
        outputs: list[RequestOutput | None] = [None] * len(requests)
        # No more sequences than may queue are sent at once: the engine would refuse the rest.
        most = max((params.n for params in sampling_params), default=1)
        room = asyncio.Semaphore(max(self.options.max_waiting // most, 1))

        async def complete(place: int) -> None:
            try:
                output = await self._complete(requests[place], lowered[place], sampling_params[place])
            finally:
                room.release()
            outputs[place] = output
            on_output(output)

        try:
            async with asyncio.TaskGroup() as group:
                for place in range(len(requests)):
                    await room.acquire()
                    group.create_task(complete(place))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [output for output in outputs if output is not None]

    async def _complete(self, request: Request, prompt: LoweredPrompt, params: SamplingParams) -> RequestOutput:
        collector = Collector(request, prompt.text, params, self._tokenizer)
        is_read_as_it_grows = bool(params.stop_strings)  # it may end before the engine ends it
        stream = await self._running_client.submit(replace(request, is_told_whole=not is_read_as_it_grows))
        next_deltas = stream.batch if is_read_as_it_grows else stream.rest
        try:
            while deltas := await next_deltas():
                for index in collector.take(deltas):
                    stream.cancel(index)
        finally:
            stream.close()
        return collector.output()

    async def embed(
        self,
        prompt: Prompt,
        request_id: str | None = None,
        *,
        priority: int = 0,
        salt: str = "",
        second_from: int = 0,
        place: Place | None = None,
        watch: Callable[[RequestStream], None] = lambda stream: None,
    ) -> EmbeddingOutput:
        """What the model makes of a prompt, as a vector: an encoder its pooled state, or a score for each of its
        labels; a decoder its last state. `second_from`: where in the tokens the second of a pair of texts begins."""
        await self.start()
        lowered = await self._lower_prompt(prompt)
        request = lower_pooling(
            lowered,
            self.card,
            request_id=request_id or uuid.uuid4().hex,
            priority=priority,
            salt=salt,
            second_from=second_from,
        )
        stream = await self._running_client.submit(request, place)
        watch(stream)
        try:
            deltas = await stream.rest()
        finally:
            stream.close()
        Collector(request, None, SamplingParams(max_tokens=1), None).take(deltas)  # raises what went wrong
        (told,) = [delta for delta in deltas if delta.pooled]
        return EmbeddingOutput(request.id, request.prompt, told.pooled, told.num_cached_tokens)

    async def beam_search(self, prompt: Prompt, params: BeamSearchParams) -> BeamSearchOutput:
        await self.start()
        lowered = await self._lower_prompt(prompt)
        return await beam_search(self, lowered.token_ids, params)

    async def abort(self, request_id: str) -> None:
        """End a request by its id; its iteration ends with what it had, finish reason "abort"."""
        if self._client is not None:
            self._client.cancel(request_id)

    async def _lower_prompt(self, prompt: Prompt) -> LoweredPrompt:
        text = prompt if isinstance(prompt, str) else prompt.get("prompt") if isinstance(prompt, dict) else None
        if isinstance(text, str) and len(text) > LONG_TEXT:
            return await asyncio.to_thread(lower_prompt, prompt, self._tokenizer)
        return lower_prompt(prompt, self._tokenizer)

    def _lower(
        self,
        prompt: LoweredPrompt,
        params: SamplingParams,
        request_id: str | None = None,
        priority: int = 0,
        salt: str = "",
    ) -> Request:
        return lower_request(
            prompt,
            params,
            self._tokenizer,
            self.card,
            request_id=request_id or uuid.uuid4().hex,
            drawn_seed=self._seeds.getrandbits(64),
            priority=priority,
            salt=salt,
        )

    # What can be seen

    @property
    def _running_client(self) -> EngineClient:
        if self._client is None:
            raise EngineDeadError("the engine was not started")
        return self._client

    @property
    def card(self) -> ModelCard:
        return self._running_client.card

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None before the start, and with skip_tokenizer_init."""
        return self._tokenizer

    @property
    def template(self) -> ChatTemplate | None:
        """None before the start, and with skip_tokenizer_init."""
        return self._template

    @property
    def state(self) -> EngineState:
        if self._closed and self._client is None:
            return EngineState.DEAD
        return self._client.state if self._client is not None else EngineState.STARTING

    @property
    def restarts(self) -> int:
        """How often the engine process was started again."""
        return self._client.num_restarts if self._client is not None else 0

    @property
    def engine_pid(self) -> int | None:
        return self._client.pid if self._client is not None else None

    @property
    def start_progress(self) -> StartProgress | None:
        """How far a start that is under way has come."""
        return self._client.start_progress if self._client is not None else None

    def admission_stats(self) -> AdmissionStats:
        """How full the queue is, and who was put off."""
        return self._running_client.admission_stats()

    def health(self) -> Health:
        return self._running_client.health()

    async def check_health(self) -> None:
        """Raise EngineDeadError unless the engine is up and its loop turns."""
        health = self.health()
        if health.state not in (EngineState.READY, EngineState.DRAINING):
            how_far = f": {self.start_progress}" if self.start_progress is not None else ""
            raise EngineDeadError(f"the engine is {health.state}{how_far}")
        if health.stalled:
            raise EngineDeadError(f"the engine has given no sign of life for {health.last_turn_age:.1f} seconds")

    async def stats(self, *, with_snapshot: bool = False) -> Stats:
        """As of now: the engine answers between two steps."""
        return await self._running_client.stats(with_snapshot=with_snapshot)


def name_of(reference: str, path: Path) -> str:
    """What clients call the model: the name it is stored under, or that of its file or directory."""
    if Path(reference).expanduser() != path:
        return reference
    return path.stem if path.suffix == ".gguf" else path.resolve().name
