"""GET /v1/models and /v1/models/{id}"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trivium.serve.models.asked import all_offers, offer_for
from trivium.serve.models.offers import Offer
from trivium.serve.openai.protocol import Model, ModelList
from trivium.serve.state import ServerState


async def list_models(state: ServerState, request: Request) -> Response:
    models = [_shown(state, offer) for offer in await all_offers(state, request)]
    return Response(msgspec.json.encode(ModelList(models)), media_type="application/json")


async def retrieve_model(state: ServerState, request: Request) -> Response:
    offer = await offer_for(state, request, request.path_params["model_id"])
    return Response(msgspec.json.encode(_shown(state, offer)), media_type="application/json")


def _shown(state: ServerState, offer: Offer) -> Model:
    model = state.models.loaded_model(offer.name)
    return Model(
        id=offer.name,
        created=state.created,
        max_model_len=offer.context_length if model is None else model.card.max_model_len,
        root=offer.name,
        loaded=model is not None,
    )
