"""GET /v1/models and /v1/models/{id}, for clients that speak Anthropic's language."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trivium.serve.anthropic.protocol import ModelInfo, ModelPage
from trivium.serve.models.asked import all_offers, offer_for
from trivium.serve.models.offers import Offer
from trivium.serve.state import ServerState


async def list_models(state: ServerState, request: Request) -> Response:
    models = [_shown(state, offer) for offer in await all_offers(state, request)]
    ids = [model.id for model in models] or [""]
    return Response(msgspec.json.encode(ModelPage(models, ids[0], ids[-1])), media_type="application/json")


async def retrieve_model(state: ServerState, request: Request) -> Response:
    offer = await offer_for(state, request, request.path_params["model_id"])
    return Response(msgspec.json.encode(_shown(state, offer)), media_type="application/json")


def _shown(state: ServerState, offer: Offer) -> ModelInfo:
    created = datetime.fromtimestamp(state.created, UTC).isoformat().replace("+00:00", "Z")
    return ModelInfo(offer.name, offer.name, created)
