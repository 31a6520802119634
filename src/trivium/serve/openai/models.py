"""GET /v1/models and /v1/models/{id}"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trivium.serve.models.asked import model_for
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.protocol import Model, ModelList
from trivium.serve.state import ServerState


async def list_models(state: ServerState, request: Request) -> Response:
    return Response(msgspec.json.encode(ModelList([_served(state, state.default)])), media_type="application/json")


async def retrieve_model(state: ServerState, request: Request) -> Response:
    model = await model_for(state, request, request.path_params["model_id"])
    return Response(msgspec.json.encode(_served(state, model)), media_type="application/json")


def _served(state: ServerState, model: ServedModel) -> Model:
    card = model.card
    return Model(id=card.name, created=state.created, max_model_len=card.max_model_len, root=card.name)
