"""The model that a request asks for: the one place where a name becomes an engine."""

from __future__ import annotations

from starlette.requests import Request

from trivium.serve.access.caller import asking
from trivium.serve.errors import ApiError
from trivium.serve.models.served import ServedModel
from trivium.serve.state import ServerState


async def model_for(state: ServerState, request: Request, name: str | None) -> ServedModel:
    """None is the default one."""
    served = state.default.name
    if name in (None, served, served.removesuffix(":latest")) or state.accept_any_model:
        _check_allowed(served)
        return state.default
    message = f"the model {name[:200]!r} is not served here; {served!r} is"
    raise ApiError(404, message, param="model", code="model_not_found")


def _check_allowed(name: str) -> None:
    """Raise where the caller's key is not for this model."""
    if not asking().may_use(name):
        raise ApiError(403, f"this key is not for the model {name[:200]!r}", param="model", code="model_not_allowed")
