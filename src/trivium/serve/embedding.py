"""Texts as vectors: the model's state after the last token, cut to a length, with norm 1."""

from __future__ import annotations

import asyncio
import math
import sys
from array import array
from collections.abc import Sequence

from msgspec import Struct

from trivium.llm.prompts import TokensPrompt
from trivium.records.ids import new_id
from trivium.serve.access.caller import asking
from trivium.serve.errors import ApiError, invalid
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.prompts import completion_prompts
from trivium.serve.openai.protocol import CompletionRequest, TokenId
from trivium.types.errors import InvalidRequestError

AT_ONCE = 32  # of one request in the engine, so that it leaves room in the queue for others

Texts = str | list[str | TokenId | list[TokenId]]


class Embedding(Struct, frozen=True):
    vector: array[float]  # float32
    num_tokens: int  # of the text


async def embed(
    model: ServedModel, texts: Texts, dimensions: int | None = None, *, truncates: bool = False
) -> list[Embedding]:
    """In the order of the texts. `truncates`: a text that is too long loses its end, rather than being refused."""
    prompts = await _prompts(model, texts)
    if truncates:
        most = model.card.max_model_len - 1
        prompts = [
            TokensPrompt(prompt=prompt["prompt"], prompt_token_ids=prompt["prompt_token_ids"][:most])
            for prompt in prompts
        ]
    caller = asking()
    room = asyncio.Semaphore(AT_ONCE)
    id = new_id("embd-")

    async def one(number: int, prompt: TokensPrompt) -> Embedding:
        async with room:
            caller.charge(len(prompt["prompt_token_ids"]))
            output = await model.llm.embed(
                prompt, f"{id}-{number}", priority=caller.priority_of(None), salt=caller.salt_of("")
            )
        return Embedding(_normalised(output.embedding, dimensions), len(output.prompt_token_ids))

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, prompt)) for number, prompt in enumerate(prompts)]
    except ExceptionGroup as errors:
        raise _told(errors.exceptions[0]) from None
    return [task.result() for task in tasks]


def similarity(one: Embedding, other: Embedding) -> float:
    """The cosine: both have norm 1."""
    return math.fsum(a * b for a, b in zip(one.vector, other.vector, strict=True))


async def _prompts(model: ServedModel, texts: Texts) -> Sequence[TokensPrompt]:
    if texts == "" or (isinstance(texts, list) and "" in texts):
        raise invalid("input must not have an empty text", "input")
    try:
        return await completion_prompts(model, CompletionRequest(prompt=texts))
    except (ApiError, InvalidRequestError) as error:
        raise _told(error) from None


def _told(error: Exception) -> Exception:
    """What is a prompt inside is the client's input."""
    if isinstance(error, ApiError | InvalidRequestError) and error.param == "prompt":
        error.param = "input"
    return error


def _normalised(state: bytes, dimensions: int | None) -> array[float]:
    vector = array("f", state)
    if sys.byteorder == "big":
        vector.byteswap()
    if dimensions is not None:
        if dimensions > len(vector):
            raise invalid(f"dimensions may be {len(vector)} at most, but is {dimensions}", "dimensions")
        vector = vector[:dimensions]
    norm = math.sqrt(math.fsum(value * value for value in vector))
    return array("f", (value / norm for value in vector)) if norm else vector
