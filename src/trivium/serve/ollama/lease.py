"""The model behind a request of Ollama's, which may say how long it is to stay."""

from __future__ import annotations

from starlette.requests import Request

from trivium.records.variants import Variant
from trivium.serve.access.caller import asking
from trivium.serve.endpoint import check_admin
from trivium.serve.models.asked import leased, offer_for
from trivium.serve.models.keep_alive import read_keep_alive
from trivium.serve.models.served import ServedModel
from trivium.serve.ollama.protocol import KeepAlive
from trivium.serve.state import ServerState


async def model_of(state: ServerState, request: Request, variant: Variant, keep_alive: KeepAlive | None) -> ServedModel:
    """How long a model stays is for all: others than admins leave that to the server."""
    seconds = state.models.keep_alive if keep_alive is None else read_keep_alive(keep_alive)
    if not asking().is_admin:
        seconds = state.models.keep_alive
    return await leased(state, request, await offer_for(state, request, variant.base), seconds)


def unloads(keep_alive: KeepAlive | None) -> bool:
    return keep_alive is not None and read_keep_alive(keep_alive) == 0.0


async def unload(state: ServerState, request: Request, variant: Variant) -> None:
    """A model of the command line stays, which its clients are not told."""
    check_admin()
    offer = await offer_for(state, request, variant.base)
    await state.models.unload(offer.name)
