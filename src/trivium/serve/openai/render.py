"""Prompts as the model would get them, without an answer: their text, their tokens, and how many there are."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from trivium.llm.prompts import TokensPrompt
from trivium.serve.body import read_json
from trivium.serve.chat.tools import read_tools
from trivium.serve.models.asked import model_for
from trivium.serve.models.served import ServedModel
from trivium.serve.openai.messages import chat_prompt
from trivium.serve.openai.prompts import completion_prompts
from trivium.serve.openai.protocol import ChatRequest, CompletionRequest
from trivium.serve.state import ServerState

CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)


class RenderedPrompt(Struct, frozen=True):
    prompt: str
    token_ids: list[int]
    count: int
    max_model_len: int


class InputTokens(Struct, frozen=True):
    input_tokens: int
    object: str = "response.input_tokens"


async def render_chat(state: ServerState, request: Request) -> Response:
    """POST /v1/chat/completions/render, and llama.cpp's /apply-template."""
    model, prompt = await _chat_prompt(state, request)
    return _json(_rendered(model, prompt))


async def count_chat_tokens(state: ServerState, request: Request) -> Response:
    """POST /v1/chat/completions/input_tokens"""
    _, prompt = await _chat_prompt(state, request)
    return _json(InputTokens(len(prompt["prompt_token_ids"])))


async def render_completion(state: ServerState, request: Request) -> Response:
    """POST /v1/completions/render: one entry for each prompt."""
    body = await read_json(request, COMPLETION, state.limits)
    model = await model_for(state, request, body.model)
    return _json([_rendered(model, prompt) for prompt in await completion_prompts(model, body)])


async def _chat_prompt(state: ServerState, request: Request) -> tuple[ServedModel, TokensPrompt]:
    body = await read_json(request, CHAT, state.limits)
    model = await model_for(state, request, body.model)
    return model, await chat_prompt(model, body, read_tools(body, state.limits).offered)


def _rendered(model: ServedModel, prompt: TokensPrompt) -> RenderedPrompt:
    tokens = list(prompt["prompt_token_ids"])
    return RenderedPrompt(prompt["prompt"], tokens, len(tokens), model.card.max_model_len)


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
