"""GET /v1/models and /v1/models/{id}, for clients that speak Anthropic's language."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trivium.serve.anthropic.protocol import ModelInfo, ModelPage
from trivium.serve.models.asked import model_for
from trivium.serve.models.served import ServedModel
from trivium.serve.state import ServerState


async def list_models(state: ServerState, request: Request) -> Response:
    model = _served(state, state.default)
    return Response(msgspec.json.encode(ModelPage([model], model.id, model.id)), media_type="application/json")


async def retrieve_model(state: ServerState, request: Request) -> Response:
    model = await model_for(state, request, request.path_params["model_id"])
    return Response(msgspec.json.encode(_served(state, model)), media_type="application/json")


def _served(state: ServerState, model: ServedModel) -> ModelInfo:
    name = model.name
    return ModelInfo(name, name, datetime.fromtimestamp(state.created, UTC).isoformat().replace("+00:00", "Z"))
