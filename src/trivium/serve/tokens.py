"""POST /tokenize and /detokenize, taking the names of vLLM's, SGLang's and llama.cpp's clients; GET /tokenizer_info."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from trivium.serve.body import read_json
from trivium.serve.errors import invalid
from trivium.serve.generation import beside_the_loop
from trivium.serve.models.asked import model_for
from trivium.serve.openai.messages import chat_prompt
from trivium.serve.openai.prompts import check_length
from trivium.serve.openai.prompts import tokenize as tokenize_text
from trivium.serve.openai.protocol import DetokenizeRequest, TokenizeRequest
from trivium.serve.query import read_query
from trivium.serve.state import ServerState

TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


class TokenPiece(Struct, frozen=True):
    id: int
    piece: str


class Tokens(Struct, frozen=True):
    tokens: list[int] | list[TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | UnsetType = UNSET


class Text(Struct, frozen=True):
    prompt: str
    text: str
    content: str


class TokenizerQuery(Struct, frozen=True):
    model: str | None = None  # None: the one that answers where none is named


class TokenizerInfo(Struct, frozen=True):
    """In the words of a Hugging Face tokenizer's configuration, which clients that score texts look for."""

    bos_token: str | None
    eos_token: str | None
    chat_template: str
    model_max_length: int


async def tokenizer_info(state: ServerState, request: Request) -> Response:
    model = await model_for(state, request, read_query(request, TokenizerQuery).model)
    tokenizer = model.tokenizer
    answer = TokenizerInfo(
        bos_token=None if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id),
        eos_token=tokenizer.token_text(tokenizer.eos_ids[0]) if tokenizer.eos_ids else None,
        chat_template=model.template.source,
        model_max_length=model.card.max_model_len,
    )
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def tokenize(state: ServerState, request: Request) -> Response:
    body = await read_json(request, TOKENIZE, state.limits)
    model = await model_for(state, request, body.model)
    text = body.prompt if body.prompt is not None else body.content
    if body.messages is not None:
        prompt = await chat_prompt(model, body, body.tools or [])
    elif text is not None:
        check_length(model, len(text), "prompt")
        prompt = await tokenize_text(model, text, add_special_tokens=body.add_special_tokens is not False)
    else:
        raise invalid("one of prompt, content and messages must be given", "prompt")
    ids = list(prompt["prompt_token_ids"])
    tokenizer = model.tokenizer
    answer = Tokens(
        tokens=[TokenPiece(token, tokenizer.token_text(token)) for token in ids] if body.with_pieces else ids,
        count=len(ids),
        max_model_len=model.card.max_model_len,
        token_strs=[tokenizer.token_text(token) for token in ids] if body.return_token_strs else UNSET,
    )
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def detokenize(state: ServerState, request: Request) -> Response:
    body = await read_json(request, DETOKENIZE, state.limits)
    model = await model_for(state, request, body.model)
    vocab_size = model.card.vocab_size
    if body.tokens and max(body.tokens) >= vocab_size:
        raise invalid(f"token id {max(body.tokens)} is outside the vocabulary of {vocab_size}", "tokens")
    skip = bool(body.skip_special_tokens)
    text = await beside_the_loop(
        model, len(body.tokens), lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=skip)
    )
    return Response(msgspec.json.encode(Text(text, text, text)), media_type="application/json")
