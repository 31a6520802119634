"""POST /v1/embeddings, /v1/score and /v1/rerank"""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from trivium.records.ids import new_id
from trivium.serve.body import read_json
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.embedding import cut_length, embed, score_pairs, similarity
from trivium.serve.errors import invalid
from trivium.serve.models.asked import model_for
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.protocol import Natural, TokenId
from trivium.serve.state import ServerState

# How many tokens of a text are kept; -1: as many as the model takes.
KeptTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]


class EmbeddingRequest(Struct, kw_only=True):
    input: str | list[str | TokenId | list[TokenId]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Natural | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    user: str | None = None


class ScoreRequest(Struct, kw_only=True):
    """One text against many, or pair by pair; by vLLM's names."""

    text_1: str | list[str]
    text_2: str | list[str]
    truncate_prompt_tokens: KeptTokens | None = None
    model: str | None = None


class RerankRequest(Struct, kw_only=True):
    """`documents` are Jina's and Cohere's, `texts` those of text-embeddings-inference."""

    query: str
    documents: list[str | dict[str, Any]] | None = None
    texts: list[str] | None = None
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    raw_scores: bool | None = None
    model: str | None = None


class Usage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(Struct, frozen=True):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(Struct, frozen=True):
    data: list[EmbeddingObject]
    model: str
    usage: Usage
    object: Literal["list"] = "list"


class Score(Struct, frozen=True):
    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreList(Struct, frozen=True):
    id: str
    data: list[Score]
    model: str
    usage: Usage
    object: Literal["list"] = "list"


class Document(Struct, frozen=True):
    text: str


class Ranked(Struct, frozen=True):
    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class Ranking(Struct, frozen=True):
    id: str
    model: str
    usage: Usage
    results: list[Ranked]


class RankedText(Struct, frozen=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


EMBEDDINGS = msgspec.json.Decoder(EmbeddingRequest)
SCORE = msgspec.json.Decoder(ScoreRequest)
RERANK = msgspec.json.Decoder(RerankRequest)


class Scores(Struct, frozen=True):
    """Of pairs of texts, in their order."""

    scores: list[float]
    num_tokens: int


async def embeddings(state: ServerState, request: Request) -> Response:
    body = await read_json(request, EMBEDDINGS, state.limits)
    model = await model_for(state, request, body.model)
    cut_to = cut_length(model, None, body.truncate_prompt_tokens)
    work = embed(model, body.input, body.dimensions, cut_to=cut_to, priority=body.priority)
    found = await unless_client_goes(request.receive, work)
    in_base64 = body.encoding_format == "base64"
    data = [
        EmbeddingObject(index, _base64(one.vector) if in_base64 else one.vector.tolist())
        for index, one in enumerate(found)
    ]
    return _json(EmbeddingList(data, body.model or model.name, _usage(sum(one.num_tokens for one in found))))


async def score(state: ServerState, request: Request) -> Response:
    body = await read_json(request, SCORE, state.limits)
    model = await model_for(state, request, body.model)
    ones, others = _list(body.text_1), _list(body.text_2)
    if len(ones) not in (1, len(others)) or not others:
        raise invalid(f"text_1 has {len(ones)} texts and text_2 {len(others)}; one, or as many, go together", "text_1")
    cut_to = cut_length(model, None, body.truncate_prompt_tokens)
    found = await unless_client_goes(request.receive, _scores(model, ones, others, cut_to))
    data = [Score(index, value) for index, value in enumerate(found.scores)]
    return _json(ScoreList(new_id("score-"), data, body.model or model.name, _usage(found.num_tokens)))


async def rerank(state: ServerState, request: Request) -> Response:
    body = await read_json(request, RERANK, state.limits)
    model = await model_for(state, request, body.model)
    texts = body.texts if body.texts is not None else [_document_text(one) for one in body.documents or ()]
    if not texts:
        raise invalid("documents must be given, and not be empty", "documents")
    cut_to = cut_length(model, body.truncate, body.truncate_prompt_tokens)
    work = _scores(model, [body.query], texts, cut_to, raw=body.raw_scores is True)
    found = await unless_client_goes(request.receive, work)
    scores = found.scores
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[: body.top_n]
    if body.texts is not None:
        told = body.return_text is True
        return _json([RankedText(index, scores[index], texts[index] if told else UNSET) for index in order])
    shown = body.return_documents is not False
    results = [Ranked(index, scores[index], Document(texts[index]) if shown else UNSET) for index in order]
    return _json(Ranking(new_id("rerank-"), body.model or model.name, _usage(found.num_tokens), results))


async def _scores(
    model: ServedModel, ones: list[str], others: list[str], cut_to: int | None, *, raw: bool = False
) -> Scores:
    """Of one text with many, or pair by pair: by a model made for that, or else by the cosine of their vectors.

    `raw`: such a model's score as it comes, not between 0 and 1.
    """
    if model.card.task == "score":
        pairs = [*zip(ones * len(others) if len(ones) == 1 else ones, others, strict=True)]
        scored = await score_pairs(model, pairs, cut_to=cut_to)
        return Scores([one.logit if raw else one.score for one in scored], sum(one.num_tokens for one in scored))
    found = await embed(model, [*ones, *others], cut_to=cut_to)
    left, right = found[: len(ones)], found[len(ones) :]
    both = zip(left * len(right) if len(left) == 1 else left, right, strict=True)
    return Scores([similarity(one, other) for one, other in both], sum(one.num_tokens for one in found))


def _document_text(document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise invalid("a document must be a text, or an object with one", "documents")
    return text


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _base64(vector: array[float]) -> str:
    """Of little-endian float32."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def _usage(num_tokens: int) -> Usage:
    return Usage(num_tokens, num_tokens)


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
