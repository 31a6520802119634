"""The engine for ordinary programs: prompts in, answers out."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from tqdm import tqdm

from trivium.engine.messages import Stats
from trivium.llm.async_llm import AsyncLLM
from trivium.llm.outputs import BeamSearchOutput, EmbeddingOutput, RequestOutput
from trivium.llm.params import BeamSearchParams, SamplingParams
from trivium.llm.prompts import Prompt, as_prompts
from trivium.text.tokenizer import Tokenizer
from trivium.types.card import ModelCard
from trivium.types.errors import EngineDeadError, InvalidRequestError

T = TypeVar("T")
Messages = Sequence[Mapping[str, Any]]
Bar = Callable[..., Any]  # makes something with the interface of tqdm

BAR_DELAY = 1.0  # seconds: what ends sooner needs no bar


class LLM:
    """One model in an engine process of its own, which ends with `close`, with the `with` block, or with the program.

    May be used from several threads; their requests run together.
    """

    def __init__(self, model: str, **options: Any) -> None:
        """`options` are those of config.options.EngineOptions; of vLLM's, those that mean nothing here are ignored."""
        self._thread = _LoopThread()
        self._llm = AsyncLLM(model, **options)
        self._finalizer = weakref.finalize(self, _close, self._thread, self._llm)
        try:
            self._thread.run(self._llm.start())
        except BaseException:
            self.close()
            raise

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Bar = True,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """One finished output for each prompt, in the prompts' order. Parameters are one for all or one for each."""
        listed = as_prompts(prompts)
        params = _for_each(sampling_params, len(listed))
        with _ProgressBar(len(listed), use_tqdm) as bar:
            return self._thread.run(self._llm.complete_all(listed, params, priorities=priority, on_output=bar.advance))

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Bar = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The same for one conversation or many, rendered by the model's chat template."""
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts: list[Prompt] = [
            self._llm.render(
                conversation,  # type: ignore[arg-type]
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """The answer to one prompt as it grows; leaving the iteration gives back all that the request holds."""
        arrived: queue.SimpleQueue[RequestOutput | BaseException | None] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async for output in self._llm.generate(prompt, sampling_params):
                    arrived.put(output)
                arrived.put(None)
            except BaseException as error:
                arrived.put(error)
                raise

        pumping = self._thread.submit(pump())
        try:
            while (item := arrived.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            pumping.cancel()

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams) -> list[BeamSearchOutput]:
        """The best `beam_width` continuations of each prompt, the best first."""
        listed = as_prompts(prompts)

        async def search() -> list[BeamSearchOutput]:
            return await asyncio.gather(*[self._llm.beam_search(prompt, params) for prompt in listed])

        return self._thread.run(search())

    def embed(self, prompts: Prompt | Sequence[Prompt]) -> list[EmbeddingOutput]:
        """What the model makes of each prompt, as a vector; see AsyncLLM.embed."""
        listed = as_prompts(prompts)
        room = asyncio.Semaphore(max(self._llm.options.max_waiting, 1))  # the engine would refuse the rest

        async def one(prompt: Prompt) -> EmbeddingOutput:
            async with room:
                return await self._llm.embed(prompt)

        async def embed_all() -> list[EmbeddingOutput]:
            return await asyncio.gather(*[one(prompt) for prompt in listed])

        return self._thread.run(embed_all())

    def get_tokenizer(self) -> Tokenizer | None:
        """None with skip_tokenizer_init."""
        return self._llm.tokenizer

    @property
    def card(self) -> ModelCard:
        return self._llm.card

    @property
    def engine_pid(self) -> int | None:
        return self._llm.engine_pid

    def stats(self) -> Stats:
        return self._thread.run(self._llm.stats())

    def close(self) -> None:
        """End the engine process; harmless the second time."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _LoopThread:
    """An event loop that runs in a thread of its own. The engine process lives as long as this thread at most."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trivium-llm", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop.is_closed():
            work.close()
            raise EngineDeadError("the engine was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.submit(work)
        try:
            return future.result()
        except (KeyboardInterrupt, CancelledError):
            future.cancel()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def _close(thread: _LoopThread, llm: AsyncLLM) -> None:
    thread.run(llm.close())
    thread.stop()


class _ProgressBar:
    """Counts finished prompts and shows the tokens per second of both directions."""

    def __init__(self, total: int, use_tqdm: bool | Bar) -> None:
        make = use_tqdm if callable(use_tqdm) else tqdm
        shown = bool(use_tqdm)
        self._bar = make(total=total, desc="Prompts", dynamic_ncols=True, delay=BAR_DELAY) if shown else None
        self._num_prompt_tokens = 0
        self._num_new_tokens = 0

    def advance(self, output: RequestOutput) -> None:
        if self._bar is None:
            return
        self._num_prompt_tokens += len(output.prompt_token_ids)
        self._num_new_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        if elapsed := self._bar.format_dict["elapsed"]:
            self._bar.set_postfix_str(
                f"in {self._num_prompt_tokens / elapsed:.0f} tok/s, out {self._num_new_tokens / elapsed:.0f} tok/s",
                refresh=False,
            )
        self._bar.update()

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _for_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidRequestError(
            f"sampling_params must be one for all or one for each prompt, but are {len(params)} for {count} prompts",
            param="sampling_params",
        )
    return list(params)
