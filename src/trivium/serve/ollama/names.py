"""Names as Ollama has them, with a tag, and the model that answers to one."""

from __future__ import annotations

from trivium.records.variants import Variant
from trivium.serve.errors import ApiError
from trivium.serve.state import ServerState

LATEST = ":latest"


def untagged(name: str) -> str:
    return name.removesuffix(LATEST)


def tagged(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def not_found(name: str) -> ApiError:
    return ApiError(404, f"model '{name[:200]}' not found", code="model_not_found")


async def variant_called(state: ServerState, name: str) -> Variant:
    """What answers to the name: the model that is served, or a variant of it."""
    served = untagged(state.default.name)
    if untagged(name) == served:
        return Variant(served, served)
    variant = await state.records.variants.get(untagged(name))
    if variant is not None and variant.base == served:
        return variant
    if state.accept_any_model:
        return Variant(served, served)
    raise not_found(name)
