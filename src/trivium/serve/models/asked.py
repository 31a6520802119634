"""The model that a request asks for: the one place where a name becomes an engine."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from starlette.requests import Request

from trivium.serve.access.caller import asking
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.errors import ApiError
from trivium.serve.models.offers import LATEST, Offer
from trivium.serve.models.served import ServedModel
from trivium.serve.request_times import current_request
from trivium.serve.state import ServerState
from trivium.types.errors import NoSuchModelError


async def model_for(state: ServerState, request: Request, name: str | None) -> ServedModel:
    """The model of that name, None being the default one: loaded, and kept so until the answer's last byte."""
    return await leased(state, request, await offer_for(state, request, name), state.models.keep_alive)


async def leased(state: ServerState, request: Request, offer: Offer, keep_alive: float | None) -> ServedModel:
    """`keep_alive`: seconds for which the model stays after the request; None: for ever."""
    leases: AsyncExitStack = request.state.leases
    entering = leases.enter_async_context(state.models.lease(offer, keep_alive))
    berth = state.models.berth_of(offer.name)
    is_there = berth is not None and not berth.is_loading
    model = await (entering if is_there else unless_client_goes(request.receive, entering))
    if (times := current_request()) is not None:
        times.model = model.name
    return model


async def offer_for(state: ServerState, request: Request, name: str | None) -> Offer:
    """What answers to the name. Raises where nothing does, or where it is not for the caller's key."""
    offer = state.models.offers.default if name is None else await find_offer(state, request, name)
    if offer is None and state.accept_any_model:
        offer = state.models.offers.default
    if offer is None:
        served = ", ".join(repr(offer.name) for offer in state.models.offers.staying)
        raise NoSuchModelError(f"the model {(name or '')[:200]!r} is not served here; {served} is")
    if not asking().may_use(offer.name):
        raise ApiError(
            403, f"this key is not for the model {offer.name[:200]!r}", param="model", code="model_not_allowed"
        )
    return offer


async def find_offer(state: ServerState, request: Request, name: str) -> Offer | None:
    models = state.models
    offer = models.offers.staying_called(name)
    if offer is not None or not offers_store(state, request):
        return offer
    if (berth := models.berth_of(name.removesuffix(LATEST))) is not None:
        return berth.offer
    return await asyncio.to_thread(models.offers.stored_called, name)


def offers_store(state: ServerState, request: Request) -> bool:
    """Whether this front end serves the models in the store."""
    path: str = request.scope["path"]
    return state.on_demand == "all" or (state.on_demand == "ollama" and path.startswith("/api/"))


async def all_offers(state: ServerState, request: Request) -> list[Offer]:
    """All that a client may ask for, the default one first."""
    offers = [*state.models.offers.staying]
    if offers_store(state, request):
        offers += await asyncio.to_thread(state.models.offers.stored)
    return [offer for offer in offers if asking().may_use(offer.name)]
