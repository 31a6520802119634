"""POST /api/embed, and the older /api/embeddings"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from trivium.serve.body import read_json
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.embedding import Texts, cut_length, embed
from trivium.serve.ollama.answer import Stopwatch
from trivium.serve.ollama.lease import model_of
from trivium.serve.ollama.names import variant_called
from trivium.serve.ollama.protocol import KeepAlive
from trivium.serve.openai.protocol import Natural
from trivium.serve.state import ServerState


class EmbedRequest(Struct, kw_only=True):
    model: str
    input: str | list[str]
    truncate: bool | None = None
    dimensions: Natural | None = None
    keep_alive: KeepAlive | None = None


class OldEmbedRequest(Struct, kw_only=True):
    model: str
    prompt: str
    keep_alive: KeepAlive | None = None


class Embeddings(Struct, frozen=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int  # nanoseconds, as is the next
    load_duration: int
    prompt_eval_count: int


class OldEmbedding(Struct, frozen=True):
    embedding: list[float]


EMBED = msgspec.json.Decoder(EmbedRequest)
OLD_EMBED = msgspec.json.Decoder(OldEmbedRequest)


async def api_embed(state: ServerState, request: Request) -> Response:
    watch = Stopwatch()
    body = await read_json(request, EMBED, state.limits, type_matters=False)
    variant = await variant_called(state, request, body.model)
    model = await model_of(state, request, variant, body.keep_alive)
    texts: Texts = [*body.input] if isinstance(body.input, list) else body.input
    cut_to = cut_length(model, body.truncate is not False, None)
    work = embed(model, texts, body.dimensions, cut_to=cut_to)
    found = await unless_client_goes(request.receive, work)
    durations = watch.durations()
    answer = Embeddings(
        model=body.model,
        embeddings=[one.vector.tolist() for one in found],
        total_duration=durations["total_duration"],
        load_duration=durations["load_duration"],
        prompt_eval_count=sum(one.num_tokens for one in found),
    )
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def api_embeddings(state: ServerState, request: Request) -> Response:
    body = await read_json(request, OLD_EMBED, state.limits, type_matters=False)
    variant = await variant_called(state, request, body.model)
    model = await model_of(state, request, variant, body.keep_alive)
    (found,) = await unless_client_goes(
        request.receive, embed(model, body.prompt, cut_to=cut_length(model, True, None))
    )
    return Response(msgspec.json.encode(OldEmbedding(found.vector.tolist())), media_type="application/json")
