"""Texts as vectors, with norm 1 and cut to a length; and how well pairs of texts go together."""

from __future__ import annotations

import asyncio
import math
import sys
from array import array
from collections.abc import Sequence

from msgspec import Struct

from trivium.llm.lower import longest_pooled
from trivium.llm.outputs import EmbeddingOutput
from trivium.llm.prompts import TokensPrompt
from trivium.observe.events import TextEncoded
from trivium.records.ids import new_id
from trivium.serve.access.caller import asking
from trivium.serve.engine_notes import EngineNotes
from trivium.serve.errors import ApiError, invalid
from trivium.serve.generation import beside_the_loop
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.prompts import check_length, completion_prompts
from trivium.serve.openai.protocol import CompletionRequest, TokenId
from trivium.serve.request_times import current_request
from trivium.serve.visit import current_place, enter
from trivium.text.tokenizer import TokenPair
from trivium.types.errors import InvalidRequestError

# Of one request in the engine: enough that one step is computed while the answers of the one before are told, and so few
# that it leaves room in the queue for others.
AT_ONCE = 128

Texts = str | list[str | TokenId | list[TokenId]]


class Embedding(Struct, frozen=True):
    vector: array[float]  # float32
    num_tokens: int  # of the text


class PairScore(Struct, frozen=True):
    logit: float
    num_tokens: int  # of both texts

    @property
    def score(self) -> float:
        """Between 0 and 1."""
        return 1 / (1 + math.exp(-self.logit)) if self.logit > -700 else 0.0


async def embed(
    model: ServedModel,
    texts: Texts,
    dimensions: int | None = None,
    *,
    cut_to: int | None = None,
    priority: int | None = None,
) -> list[Embedding]:
    """In the order of the texts. `cut_to`: see `cut_length`. `priority`: as asked by the client."""
    card = model.card
    if card.task == "score":
        raise invalid(
            f"the model {card.name} scores pairs of texts (/v1/rerank, /v1/score), and makes no vectors", "model"
        )
    enter(model, priority)
    prompts = await _prompts(model, texts, cut_to)
    outputs = await _encode(model, [(prompt, 0) for prompt in prompts], priority)
    return [Embedding(_normalised(one.embedding, dimensions), len(one.prompt_token_ids)) for one in outputs]


async def score_pairs(
    model: ServedModel, pairs: Sequence[tuple[str, str]], *, cut_to: int | None = None
) -> list[PairScore]:
    """By a model that was trained to score pairs."""
    card = model.card
    if card.vector_size != 1:
        raise invalid(f"the model {card.name} has {card.vector_size} labels, and a score needs one that has 1", "model")
    enter(model)
    if len(pairs) > model.limits.prompts:
        raise invalid(f"there may be {model.limits.prompts} pairs at most, but there are {len(pairs)}")
    if cut_to is None:
        for one, other in pairs:
            check_length(model, len(one) + len(other), "query")
    else:
        most = longest_pooled(card) * model.limits.chars_per_token
        pairs = [(one[:most], other[:most]) for one, other in pairs]
    num_chars = sum(len(one) + len(other) for one, other in pairs)
    encode = model.tokenizer.encode_pairs
    found: list[TokenPair] = await beside_the_loop(model, num_chars, lambda: encode(pairs, cut_to))
    outputs = await _encode(model, [(TokensPrompt(prompt_token_ids=pair.ids), pair.second_from) for pair in found])
    return [PairScore(_floats(one.embedding)[0], len(one.prompt_token_ids)) for one in outputs]


def cut_length(model: ServedModel, truncate: bool | None, truncate_prompt_tokens: int | None) -> int | None:
    """The tokens that a text may keep. None: one that is too long is refused. -1 stands for what the model takes."""
    longest = longest_pooled(model.card)
    if truncate_prompt_tokens is None:
        return longest if truncate else None
    if truncate_prompt_tokens > longest:
        raise invalid(
            f"truncate_prompt_tokens may be {longest} at most, but is {truncate_prompt_tokens}",
            "truncate_prompt_tokens",
        )
    return longest if truncate_prompt_tokens == -1 else truncate_prompt_tokens


def similarity(one: Embedding, other: Embedding) -> float:
    """The cosine: both have norm 1."""
    return math.fsum(a * b for a, b in zip(one.vector, other.vector, strict=True))


async def _encode(
    model: ServedModel, prompts: Sequence[tuple[TokensPrompt, int]], asked_priority: int | None = None
) -> list[EmbeddingOutput]:
    """Of prompts and where in them the second of a pair begins, what the engine makes of them."""
    caller = asking()
    priority, salt = caller.priority_of(asked_priority), caller.salt_of("")
    room = asyncio.Semaphore(AT_ONCE)
    id = new_id("embd-")
    notes = EngineNotes(sum(len(prompt["prompt_token_ids"]) for prompt, _ in prompts))
    if (times := current_request()) is not None:
        times.add(model.name, notes)

    async def one(number: int, prompt: TokensPrompt, second_from: int) -> EmbeddingOutput:
        async with room:
            caller.charge(len(prompt["prompt_token_ids"]))
            output = await model.llm.embed(
                prompt,
                f"{id}-{number}",
                priority=priority,
                salt=salt,
                second_from=second_from,
                place=current_place(),
                watch=notes.watch,
            )
        model.emit(TextEncoded(output.request_id, model.name, len(output.prompt_token_ids), output.num_cached_tokens))
        return output

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(number, *prompt)) for number, prompt in enumerate(prompts)]
    except ExceptionGroup as errors:
        raise _told(errors.exceptions[0]) from None
    finally:
        notes.end()
    return [task.result() for task in tasks]


async def _prompts(model: ServedModel, texts: Texts, cut_to: int | None) -> Sequence[TokensPrompt]:
    if texts == "" or (isinstance(texts, list) and "" in texts):
        raise invalid("input must not have an empty text", "input")
    if cut_to is not None:
        most = longest_pooled(model.card) * model.limits.chars_per_token
        texts = texts[:most] if isinstance(texts, str) else [_beginning(text, most) for text in texts]
    try:
        prompts = await completion_prompts(model, CompletionRequest(prompt=texts))
    except (ApiError, InvalidRequestError) as error:
        raise _told(error) from None
    if cut_to is None:
        return prompts
    return [TokensPrompt(prompt_token_ids=model.tokenizer.cut(one["prompt_token_ids"], cut_to)) for one in prompts]


def _beginning(text: str | TokenId | list[TokenId], num_chars: int) -> str | TokenId | list[TokenId]:
    """Of a text; tokens are cut later."""
    return text[:num_chars] if isinstance(text, str) else text


def _told(error: Exception) -> Exception:
    """What is a prompt inside is the client's input."""
    if isinstance(error, ApiError | InvalidRequestError) and error.param == "prompt":
        error.param = "input"
    return error


def _normalised(state: bytes, dimensions: int | None) -> array[float]:
    vector = _floats(state)
    if dimensions is not None:
        if dimensions > len(vector):
            raise invalid(f"dimensions may be {len(vector)} at most, but is {dimensions}", "dimensions")
        vector = vector[:dimensions]
    norm = math.sqrt(math.fsum(value * value for value in vector))
    return array("f", (value / norm for value in vector)) if norm else vector


def _floats(state: bytes) -> array[float]:
    vector = array("f", state)
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
