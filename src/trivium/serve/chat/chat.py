"""A chat request answered: checked, rendered, generated, and read by the model's dialect."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from trivium.faults import fault_point
from trivium.llm.outputs import CompletionDelta, CompletionOutput, RequestOutput
from trivium.llm.structured import read_structured_outputs
from trivium.serve.chat.forms import answer_form
from trivium.serve.chat.news import (
    ChatNews,
    ChatResult,
    ChatUsage,
    ChoiceNews,
    ChoiceResult,
    calls_of,
    content_of,
    reasoning_of,
)
from trivium.serve.chat.reading import ChoiceReader
from trivium.serve.chat.thinking import know_marks, tells_reasoning, thinking_limit
from trivium.serve.chat.tools import Tools, read_tools
from trivium.serve.generation import Job, generate
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.logprobs import TokenShapes
from trivium.serve.openai.messages import chat_prompt
from trivium.serve.openai.protocol import ChatRequest
from trivium.serve.openai.sampling import chat_sampling
from trivium.serve.visit import enter
from trivium.types.errors import NeverFitsError

logger = logging.getLogger("trivium.serve")


async def open_chat(model: ServedModel, request: ChatRequest, id: str) -> Chat:
    """Everything that can be wrong with the request is raised here, but for what the engine says of its length.

    Front ends other than OpenAI's write their requests as a ChatRequest first.
    """
    fault_point("chat.open", id)
    sampling = chat_sampling(request, model)
    enter(model, request.priority)
    tools = read_tools(request, model.limits)
    prompt = await chat_prompt(model, request, tools.offered)
    in_reasoning = model.dialect.opens_reasoning(prompt["prompt"], _continued(request))
    asked = read_structured_outputs(sampling.structured_outputs)
    sampling.structured_outputs = answer_form(asked, tools, model.dialect, in_reasoning=in_reasoning)
    sampling.thinking = thinking_limit(request, model.dialect, model.template.source, in_reasoning=in_reasoning)
    if sampling.thinking is not None:
        # The first time looks at the whole vocabulary, which must not hold up the event loop.
        await asyncio.to_thread(know_marks, sampling.thinking, model.tokenizer)
    return Chat(
        served=model,
        id=id,
        created=int(time.time()),
        model=request.model or model.name,
        job=Job(id, prompt, sampling, request.priority, request.cache_salt or ""),
        tools=tools,
        shapes=TokenShapes(model.tokenizer, sampling),
        in_reasoning=in_reasoning,
        tells_reasoning=tells_reasoning(request),
    )


def _continued(request: ChatRequest) -> str:
    """The text of the last message where the model is to go on with it."""
    content = request.messages[-1].content if request.continue_final_message else None
    return content if isinstance(content, str) else "".join(part.text or "" for part in content or ())


class Chat(Struct, frozen=True):
    """One request on its way to its answers. Either `news` or `whole` is called, once."""

    served: ServedModel
    id: str
    created: int  # seconds since 1970
    model: str
    job: Job
    tools: Tools
    shapes: TokenShapes
    in_reasoning: bool  # the prompt ends inside of reasoning
    tells_reasoning: bool

    @property
    def n(self) -> int:
        return self.job.sampling.n

    def cut_to_context(self) -> None:
        """Where more tokens were allowed than the context has room for, the answer ends with the context."""
        room = self.served.card.max_model_len - len(self.job.prompt["prompt_token_ids"])
        sampling = self.job.sampling
        if sampling.max_tokens is not None and 0 < room < sampling.max_tokens:
            sampling.max_tokens = room

    async def news(self) -> AsyncGenerator[ChatNews]:
        """What is new, as it comes. Closing the generator gives back all that the request holds."""
        readers = [self._reader() for _ in range(self.n)]
        ended: set[int] = set()
        async with aclosing(self._outputs()) as outputs:
            async for output in outputs:
                choices = []
                for completion in output.outputs:
                    if completion.index in ended or not (completion.delta or completion.finished):
                        continue
                    choices.append(_news(readers[completion.index], completion))
                    if completion.finished:
                        ended.add(completion.index)
                if choices:
                    yield ChatNews(tuple(choices), _usage(output, readers))
        self._tell_malformed(readers)

    async def whole(self) -> ChatResult:
        """The finished answers."""
        async with aclosing(self._outputs()) as outputs:
            async for output in outputs:
                last = output
        readers = [self._reader() for _ in range(self.n)]
        choices = [_result(reader, completion) for reader, completion in zip(readers, last.outputs, strict=True)]
        self._tell_malformed(readers)
        return ChatResult(choices, _usage(last, readers), last.prompt_logprobs)

    async def _outputs(self) -> AsyncGenerator[RequestOutput]:
        try:
            async with aclosing(generate(self.served, self.job)) as outputs:
                async for output in outputs:
                    yield output
        except NeverFitsError as error:
            error.param = "messages"
            raise

    def _reader(self) -> ChoiceReader:
        return ChoiceReader(
            self.served.dialect,
            self.tools,
            self.shapes,
            in_reasoning=self.in_reasoning,
            tells_reasoning=self.tells_reasoning,
        )

    def _tell_malformed(self, readers: list[ChoiceReader]) -> None:
        if count := sum(reader.num_malformed for reader in readers):
            dialect = self.served.dialect.name
            logger.warning("%s: %d tool calls could not be read as %s and were left as text", self.id, count, dialect)


def _news(reader: ChoiceReader, completion: CompletionOutput) -> ChoiceNews:
    parts, finish = reader.read(completion)
    delta = completion.delta
    return ChoiceNews(completion.index, parts, delta.token_ids, delta.logprobs, finish)


def _result(reader: ChoiceReader, completion: CompletionOutput) -> ChoiceResult:
    """All of it read at once, which gives the same as piece by piece."""
    logprobs = tuple(completion.logprobs or ())
    whole = CompletionDelta(completion.text, tuple(completion.token_ids), logprobs)
    parts, finish = reader.read(replace(completion, delta=whole))
    assert finish is not None
    return ChoiceResult(
        index=completion.index,
        content=content_of(parts),
        reasoning=reasoning_of(parts),
        calls=calls_of(parts),
        token_ids=completion.token_ids,
        logprobs=logprobs,
        finish=finish,
    )


def _usage(output: RequestOutput, readers: list[ChoiceReader]) -> ChatUsage:
    return ChatUsage(
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens,
        completion_tokens=sum(len(completion.token_ids) for completion in output.outputs),
        reasoning_tokens=sum(reader.num_reasoning_tokens for reader in readers),
    )
