"""Where Ollama's clients find things."""

from __future__ import annotations

from starlette.routing import Route

from trivium.serve.endpoint import GenerationEndpoint, Handler, PlainEndpoint
from trivium.serve.ollama.blobs import has_blob, put_blob
from trivium.serve.ollama.embed import api_embed, api_embeddings
from trivium.serve.ollama.generate import api_chat, api_generate
from trivium.serve.ollama.models import copy, create, delete, pull, running, show, tags, version
from trivium.serve.state import ServerState


def ollama_routes(state: ServerState) -> list[Route]:
    def plain(path: str, handler: Handler, method: str, *, admins: bool = False) -> Route:
        return Route(path, PlainEndpoint(state, handler, needs_engine=True, for_admins=admins), methods=[method])

    return [
        Route("/api/generate", GenerationEndpoint(state, api_generate), methods=["POST"]),
        Route("/api/chat", GenerationEndpoint(state, api_chat), methods=["POST"]),
        Route("/api/embed", GenerationEndpoint(state, api_embed), methods=["POST"]),
        Route("/api/embeddings", GenerationEndpoint(state, api_embeddings), methods=["POST"]),
        plain("/api/tags", tags, "GET"),
        plain("/api/ps", running, "GET"),
        plain("/api/version", version, "GET"),
        plain("/api/show", show, "POST"),
        plain("/api/copy", copy, "POST", admins=True),
        plain("/api/create", create, "POST", admins=True),
        plain("/api/pull", pull, "POST", admins=True),
        plain("/api/blobs/{digest}", has_blob, "HEAD", admins=True),
        plain("/api/blobs/{digest}", put_blob, "POST", admins=True),
        plain("/api/delete", delete, "DELETE", admins=True),
    ]
