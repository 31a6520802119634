"""The web application: its routes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from trivium.serve.access.cors import with_cors
from trivium.serve.access.entrance import Entrance
from trivium.serve.access.gate import Gate
from trivium.serve.access.logged import Logged
from trivium.serve.access.origins import LocalOnly
from trivium.serve.anthropic import models as anthropic_models
from trivium.serve.anthropic.messages import count_tokens, messages
from trivium.serve.endpoint import GenerationEndpoint, Handler, PlainEndpoint
from trivium.serve.engine_view import engine
from trivium.serve.error_answers import answer_error, speaks_anthropic
from trivium.serve.errors import ApiError
from trivium.serve.ollama.routes import ollama_routes
from trivium.serve.openai import models as openai_models
from trivium.serve.openai.batches import cancel_batch, create_batch, list_batches, retrieve_batch
from trivium.serve.openai.chat import chat_completions
from trivium.serve.openai.completions import completions
from trivium.serve.openai.conversations import (
    add_items,
    create_conversation,
    delete_conversation,
    delete_item,
    list_items,
    retrieve_conversation,
    retrieve_item,
    update_conversation,
)
from trivium.serve.openai.embeddings import embeddings, rerank, score
from trivium.serve.openai.files import create_file, delete_file, file_content, list_files, retrieve_file
from trivium.serve.openai.render import count_chat_tokens, render_chat, render_completion
from trivium.serve.openai.responses import (
    cancel_response,
    count_input_tokens,
    create_response,
    delete_response,
    list_input_items,
    retrieve_response,
)
from trivium.serve.operations import health, metrics, progress
from trivium.serve.page.files import front_door, page_file
from trivium.serve.paths import NormalPaths
from trivium.serve.report import report
from trivium.serve.request_ids import RequestIds
from trivium.serve.requests import explain_request, list_requests
from trivium.serve.sse import EventStreamResponse
from trivium.serve.state import ServerState
from trivium.serve.tokens import detokenize, tokenize, tokenizer_info
from trivium.types.errors import TriviumError


def public_app(state: ServerState, entrance: Entrance) -> ASGIApp:
    """For clients. From the inside out: who is refused gets the headers that browsers need, and all have an id."""
    app: ASGIApp = Gate(routes(state), entrance.keyring, opens_metrics=entrance.opens_metrics)
    if entrance.origins:
        app = with_cors(app, entrance.origins)
    if entrance.is_local:
        app = LocalOnly(app, entrance.hosts, entrance.origins)
    app = NormalPaths(app)
    if entrance.log is not None:
        app = Logged(app, entrance.log)
    return RequestIds(app, state.limits.request_id_chars)


def inner_app(state: ServerState) -> ASGIApp:
    """For requests of this server to itself, on behalf of whoever left them with it."""
    return RequestIds(NormalPaths(routes(state)), state.limits.request_id_chars)


def routes(state: ServerState) -> Starlette:
    def plain(path: str, handler: Handler, *methods: str, engine: bool = True) -> Route:
        return Route(path, PlainEndpoint(state, handler, needs_engine=engine), methods=[*methods])

    app = Starlette(
        routes=[
            Route("/chat/completions", GenerationEndpoint(state, chat_completions), methods=["POST"]),
            Route("/completions", GenerationEndpoint(state, completions), methods=["POST"]),
            Route("/embeddings", GenerationEndpoint(state, embeddings), methods=["POST"]),
            Route("/score", GenerationEndpoint(state, score), methods=["POST"]),
            Route("/rerank", GenerationEndpoint(state, rerank), methods=["POST"]),
            plain("/chat/completions/render", render_chat, "POST"),
            plain("/chat/completions/input_tokens", count_chat_tokens, "POST"),
            plain("/completions/render", render_completion, "POST"),
            plain("/apply-template", render_chat, "POST"),
            plain("/models", in_their_words(openai_models.list_models, anthropic_models.list_models), "GET"),
            plain(
                "/models/{model_id:path}",
                in_their_words(openai_models.retrieve_model, anthropic_models.retrieve_model),
                "GET",
            ),
            Route("/messages", GenerationEndpoint(state, messages), methods=["POST"]),
            plain("/messages/count_tokens", count_tokens, "POST"),
            *ollama_routes(state),
            Route("/responses", GenerationEndpoint(state, create_response), methods=["POST"]),
            plain("/responses/input_tokens", count_input_tokens, "POST"),
            plain("/responses/{response_id}", retrieve_response, "GET", engine=False),
            plain("/responses/{response_id}", delete_response, "DELETE", engine=False),
            plain("/responses/{response_id}/cancel", cancel_response, "POST", engine=False),
            plain("/responses/{response_id}/input_items", list_input_items, "GET", engine=False),
            plain("/conversations", create_conversation, "POST", engine=False),
            plain("/conversations/{conversation_id}", retrieve_conversation, "GET", engine=False),
            plain("/conversations/{conversation_id}", update_conversation, "POST", engine=False),
            plain("/conversations/{conversation_id}", delete_conversation, "DELETE", engine=False),
            plain("/conversations/{conversation_id}/items", list_items, "GET", engine=False),
            plain("/conversations/{conversation_id}/items", add_items, "POST", engine=False),
            plain("/conversations/{conversation_id}/items/{item_id}", retrieve_item, "GET", engine=False),
            plain("/conversations/{conversation_id}/items/{item_id}", delete_item, "DELETE", engine=False),
            plain("/files", list_files, "GET", engine=False),
            plain("/files", create_file, "POST", engine=False),
            plain("/files/{file_id}", retrieve_file, "GET", engine=False),
            plain("/files/{file_id}", delete_file, "DELETE", engine=False),
            plain("/files/{file_id}/content", file_content, "GET", engine=False),
            plain("/batches", list_batches, "GET", engine=False),
            plain("/batches", create_batch, "POST"),
            plain("/batches/{batch_id}", retrieve_batch, "GET", engine=False),
            plain("/batches/{batch_id}/cancel", cancel_batch, "POST", engine=False),
            plain("/tokenize", tokenize, "POST"),
            plain("/detokenize", detokenize, "POST"),
            plain("/tokenizer_info", tokenizer_info, "GET"),
            plain("/health", health, "GET", engine=False),
            plain("/health/progress", progress, "GET", engine=False),
            plain("/metrics", metrics, "GET", engine=False),
            plain("/requests", list_requests, "GET", engine=False),
            plain("/requests/{request_id:path}", explain_request, "GET", engine=False),
            plain("/engine", engine, "GET", engine=False),
            plain("/report", report, "GET", engine=False),
            plain("/", front_door, "GET", engine=False),
            plain("/page/{name}", page_file, "GET", engine=False),
        ],
        exception_handlers=dict.fromkeys((ApiError, TriviumError, HTTPException, Exception), answer_error),
    )
    app.router.redirect_slashes = False
    return app


def in_their_words(openai: Handler, anthropic: Handler) -> Handler:
    """For a path that both have, and answer differently."""

    async def answer(state: ServerState, request: Request) -> Response | EventStreamResponse:
        return await (anthropic if speaks_anthropic(request) else openai)(state, request)

    return answer
