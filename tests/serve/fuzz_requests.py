"""Requests for every route of the server, drawn at random: right, spoiled, and broken on the wire."""

from __future__ import annotations

import random
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from fuzz_values import NASTY, Values, to_json
from starlette.routing import Route

from trivium.serve.anthropic import protocol as anthropic
from trivium.serve.app import routes
from trivium.serve.ollama import embed as ollama_embed
from trivium.serve.ollama import protocol as ollama
from trivium.serve.openai import batches, conversations, embeddings, protocol
from trivium.serve.responses import protocol as responses

BODIES: dict[str, type] = {
    "/chat/completions": protocol.ChatRequest,
    "/chat/completions/render": protocol.ChatRequest,
    "/chat/completions/input_tokens": protocol.ChatRequest,
    "/apply-template": protocol.ChatRequest,
    "/completions": protocol.CompletionRequest,
    "/completions/render": protocol.CompletionRequest,
    "/embeddings": embeddings.EmbeddingRequest,
    "/score": embeddings.ScoreRequest,
    "/rerank": embeddings.RerankRequest,
    "/messages": anthropic.MessagesRequest,
    "/messages/count_tokens": anthropic.PromptRequest,
    "/responses": responses.CreateResponse,
    "/responses/input_tokens": responses.InputRequest,
    "/conversations": conversations.CreateConversation,
    "/conversations/{conversation_id}": conversations.UpdateConversation,
    "/conversations/{conversation_id}/items": conversations.AddItems,
    "/batches": batches.CreateBatch,
    "/tokenize": protocol.TokenizeRequest,
    "/detokenize": protocol.DetokenizeRequest,
    "/api/generate": ollama.GenerateRequest,
    "/api/chat": ollama.ChatRequest,
    "/api/embed": ollama_embed.EmbedRequest,
    "/api/embeddings": ollama_embed.OldEmbedRequest,
    "/api/show": ollama.ModelRequest,
    "/api/copy": ollama.CopyRequest,
    "/api/create": ollama.CreateRequest,
    "/api/delete": ollama.ModelRequest,
}
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\nContent-Type: x/y\r\n\r\nabc\r\n--b--\r\n'
)
PULL = {"model": "no such name", "stream": False}  # nothing is fetched from anywhere
MAKERS = {"/files": "file_id", "/batches": "batch_id", "/responses": "response_id", "/conversations": "conversation_id"}
ID = re.compile(rb'"id":"((?:file-|batch_|resp_|conv_)\w+)"')
MOST_IDS = 20  # of one kind
QUERIES = ("limit", "order", "after", "purpose", "stream", "starting_after", "include", "x")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


class Delivery(Enum):
    WHOLE = auto()
    CHUNKED = auto()
    IN_PIECES = auto()  # with pauses between them
    TWICE = auto()  # the second before the first is answered
    ABANDONED = auto()  # the client goes before the answer is there
    TRUNCATED = auto()  # the client goes before the body is there
    BAD_CHUNKS = auto()
    GARBAGE = auto()  # bytes that are no request


# Of 1000 requests. After those of the last three the connection cannot be used again, and an answer may not come.
WEIGHTS = {
    Delivery.WHOLE: 900, Delivery.CHUNKED: 30, Delivery.IN_PIECES: 10, Delivery.TWICE: 10, Delivery.ABANDONED: 15,
    Delivery.TRUNCATED: 10, Delivery.BAD_CHUNKS: 10, Delivery.GARBAGE: 15,
}  # fmt: skip
UNANSWERABLE = {Delivery.ABANDONED, Delivery.TRUNCATED, Delivery.BAD_CHUNKS, Delivery.GARBAGE}


@dataclass(frozen=True)
class FuzzRequest:
    route: str  # as the application has it, or a word for what has none
    is_valid: bool  # it is as its type wants it
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    delivery: Delivery

    def head(self, *more: str) -> bytes:
        lines = [
            f"{self.method} {self.target} HTTP/1.1",
            "host: localhost",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join([*lines, *more, "", ""]).encode("utf-8", "replace")

    def shown(self) -> str:
        return f"{self.delivery.name} {self.head()[:500]!r} {self.body[:1500]!r}"


def application_routes() -> list[tuple[str, str]]:
    """(method, path) of all that the server answers."""
    state: Any = None  # is needed by requests only
    known = [route for route in routes(state).routes if isinstance(route, Route)]
    return [(method, route.path) for route in known for method in sorted(route.methods or ()) if method != "HEAD"]


class Requests:
    """`ids`: of things that the server holds, by the path parameter that names them; `learn` adds to them."""

    def __init__(self, seed: int, ids: Mapping[str, list[str]]) -> None:
        self._chance = random.Random(seed)
        self._ids = ids
        self._routes = application_routes()
        known = {
            "input_file_id": ids["file_id"],
            "previous_response_id": ids["response_id"],
            "CreateResponse.conversation": ids["conversation_id"],
        }
        self._values = Values(self._chance, known)
        self._deliveries = list(WEIGHTS)
        # Routes with a body have far more to be wrong about.
        self._weights = [8 if path in BODIES and method != "GET" else 2 for method, path in self._routes]

    def draw(self) -> FuzzRequest:
        chance = self._chance
        delivery = chance.choices(self._deliveries, list(WEIGHTS.values()))[0]
        if delivery is Delivery.GARBAGE:
            return FuzzRequest("garbage", False, "", "", (), self._garbage(), delivery)
        if chance.random() < 0.03:
            return self._off_the_map(delivery)
        method, route = chance.choices(self._routes, self._weights)[0]
        is_valid = chance.random() < 0.35
        headers, body = self._body(method, route, is_valid)
        return FuzzRequest(
            route,
            is_valid,
            method,
            self._target(route, is_valid),
            (*headers, *self._more_headers(is_valid)),
            body,
            delivery,
        )

    def learn(self, request: FuzzRequest, body: bytes) -> None:
        """From an answer of 200."""
        name = MAKERS.get(request.route)
        if request.method == "POST" and name is not None and (found := ID.search(body)):
            self._ids[name].append(found[1].decode())
            del self._ids[name][:-MOST_IDS]

    def _body(self, method: str, route: str, is_valid: bool) -> tuple[list[tuple[str, str]], bytes]:
        chance = self._chance
        if (method, route) == ("POST", "/files"):
            return [("content-type", "multipart/form-data; boundary=b")], FORM if is_valid else self._damaged(FORM)
        if method == "GET" or (route not in BODIES and route != "/api/pull"):
            return [], b""
        value: Any = PULL if route == "/api/pull" else self._values.of_struct(BODIES[route])
        if is_valid:
            return [("content-type", "application/json")], to_json(value)
        kind = chance.choices(("application/json", "text/plain", "a/b+json", "\x7f", ""), (95, 2, 1, 1, 1))[0]
        if chance.random() < 0.12:
            return [("content-type", kind)], self._damaged(to_json(value))
        if route != "/api/pull":  # a spoiled name might be one that somebody has
            value = self._values.spoiled(value)
        return [("content-type", kind)], to_json(value)

    def _damaged(self, body: bytes) -> bytes:
        chance = self._chance
        damaged = bytearray(body)
        for _ in range(chance.randint(0, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        first, end = sorted(chance.randrange(len(damaged) + 1) for _ in range(2))
        match chance.randrange(6):
            case 0:
                return bytes(damaged[:first])
            case 1:
                return bytes(damaged[:first] + damaged[end:])
            case 2:
                return bytes(damaged[:end] + damaged[first:])
        return bytes(damaged)

    def _target(self, route: str, is_valid: bool) -> str:
        chance = self._chance
        path = route
        for name, ids in (*self._ids.items(), ("model_id:path", ("tiny/llama",))):
            if "{" + name + "}" in path:
                value = chance.choice(ids) if is_valid or chance.random() < 0.5 else self._quoted(self._word())
                path = path.replace("{" + name + "}", value)
        if not path.startswith("/api/") and chance.random() < 0.7:
            path = "/v1" + path
        if is_valid or chance.random() < 0.8:
            return path
        query = {chance.choice(QUERIES): self._word() for _ in range(chance.randint(1, 3))}
        return f"{path}?{urllib.parse.urlencode(query, errors='replace')}"

    def _word(self) -> str:
        value = self._chance.choice(NASTY)
        return str(value)[:400]

    def _quoted(self, word: str) -> str:
        return urllib.parse.quote(word, safe="" if self._chance.random() < 0.7 else "/", errors="replace")

    def _more_headers(self, is_valid: bool) -> list[tuple[str, str]]:
        chance = self._chance
        if is_valid or chance.random() < 0.9:
            return [("anthropic-version", "2023-06-01")] if chance.random() < 0.1 else []
        return [
            chance.choice(
                (
                    ("x-request-id", "a" * 300), ("x-request-id", "\x01"), ("content-encoding", "gzip"), ("accept", "x" * 2000),
                    ("x-big", "y" * 70_000), ("x-ü", "ü"), ("origin", "http://evil.example"), ("authorization", "Bearer \xff"),
                    ("expect", "100-continue"), ("connection", "close"), ("connection", "upgrade"), ("upgrade", "h2c"),
                    ("range", "bytes=0-1"), ("host", "other"), ("cookie", "a=b; " * 300), ("te", "gzip"), ("x-empty", ""),
                )
            )
        ] + [(f"x-{number}", "v") for number in range(chance.choice((0, 0, 0, 300)))]  # fmt: skip

    def _off_the_map(self, delivery: Delivery) -> FuzzRequest:
        """Methods and paths that are nobody's."""
        chance = self._chance
        method = chance.choice(METHODS)
        path = chance.choice(("/", "*", "/v1", "/v1/", "/nowhere", "/v1/chat", "/api", "/api/", "/v2/models", "//", "/%ff%00", "/" + "a" * 9000,
                              self._target(chance.choice(self._routes)[1], False)))  # fmt: skip
        return FuzzRequest("off the map", False, method, path, (), chance.choice((b"", b"{}")), delivery)

    def _garbage(self) -> bytes:
        chance = self._chance
        return chance.choice(
            (
                chance.randbytes(chance.randrange(1, 300)), b"\r\n\r\n", b"GET", b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"BREW /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nbad header\r\n\r\n",
                b"GET /v1/mod\x00els HTTP/1.1\r\nhost: localhost\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /v1/models\r\n\r\n",
                b"POST /tokenize HTTP/1.1\r\ncontent-length: -1\r\n\r\n{}", b"POST /tokenize HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
                b"POST /tokenize HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 5\r\n\r\n{}", b"\x16\x03\x01\x02\x00\x01\x00",
                b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n{}", b"G" * 70_000,
                b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 12_000 + b"\r\n", b"GET / HTTP/1.1\r\nx: " + b"c" * 70_000, b"\0" * 500,
            )
        )  # fmt: skip
