"""The engine for asyncio programs: prompts in, growing answers out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from trivium.llm.outputs import RequestOutput
from trivium.llm.params import SamplingParams
from trivium.llm.prompts import Prompt
from trivium.types.card import ModelCard


class AsyncLLM:
    """`async with AsyncLLM(model) as llm:`, or `await llm.start()` … `await llm.close()`."""

    def __init__(self, model: str, **options: Any) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Until the engine is ready. Raises the TriviumError that kept it from it."""
        raise NotImplementedError

    async def __aenter__(self) -> AsyncLLM:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """The answers as they grow; each output is the whole state, and each completion's `delta` what is new in it.

        What is wrong with the request, or refused by the engine, is raised at the first step of the iteration, before
        any output. Leaving the iteration (break, aclose, a cancelled task) gives back all that the request holds.
        """
        raise NotImplementedError

    def chat(
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
    ) -> AsyncIterator[RequestOutput]:
        """`generate` over the messages rendered by the model's chat template."""
        raise NotImplementedError

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The prompt that `chat` would send: its text and its tokens."""
        raise NotImplementedError

    async def abort(self, request_id: str) -> None:
        """End a request by its id; its iteration ends with what it had, finish reason "abort"."""
        raise NotImplementedError

    @property
    def card(self) -> ModelCard:
        raise NotImplementedError

    @property
    def tokenizer(self) -> Any:
        """text.tokenizer.Tokenizer; None with skip_tokenizer_init."""
        raise NotImplementedError

    @property
    def template(self) -> Any:
        """text.template.ChatTemplate; None where the model has none."""
        raise NotImplementedError

    @property
    def state(self) -> str:
        """starting, ready, restarting, draining or dead."""
        raise NotImplementedError

    async def check_health(self) -> None:
        """Raise EngineDeadError unless the engine is up and its loop turns."""
        raise NotImplementedError

    async def stats(self) -> Any:
        """engine.messages.Stats, asked for now."""
        raise NotImplementedError

    async def drain(self, timeout: float | None = None) -> None:
        """Refuse new requests and wait until those under way have ended."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
