"""Names as Ollama has them, with a tag, and the model that answers to one."""

from __future__ import annotations

from starlette.requests import Request

from trivium.records.variants import Variant
from trivium.serve.errors import ApiError
from trivium.serve.models.asked import find_offer
from trivium.serve.models.offers import LATEST
from trivium.serve.state import ServerState


def untagged(name: str) -> str:
    return name.removesuffix(LATEST)


def tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def not_found(name: str) -> ApiError:
    return ApiError(404, f"model '{name[:200]}' not found", code="model_not_found")


async def variant_called(state: ServerState, request: Request, name: str) -> Variant:
    """What answers to the name: a model that is served, or a variant of one."""
    plain = untagged(name)
    if await find_offer(state, request, plain) is not None:
        return Variant(plain, plain)
    variant = await state.records.variants.get(plain)
    if variant is not None and await find_offer(state, request, variant.base) is not None:
        return variant
    if state.accept_any_model:
        default = untagged(state.models.offers.default.name)
        return Variant(default, default)
    raise not_found(name)
