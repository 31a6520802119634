"""A server to measure: found at its address or started, and asked what it serves and what words cost there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from trivium.bench.client import AnswerSettings, OpenAIClient, PlannedRequest, ServedModel, get, served_models
from trivium.bench.errors import BenchError
from trivium.bench.http_client import HttpClient, Origin
from trivium.bench.prompts import WORDS, PromptCost
from trivium.bench.record import Target
from trivium.bench.server import own_server
from trivium.bench.settings import AnswerOptions

# Every word once, and every word twice: the difference is what a word costs on average, and nothing else. They begin
# differently, for there are servers that do not count what they find in their cache.
PROBES = (WORDS, WORDS[::-1] * 2)


class Place(Struct, frozen=True, kw_only=True):
    """Where the server is to be found: at an address, or started here with a model (None: the default one)."""

    base_url: str | None = None
    start_model: str | None = None
    server_options: str | None = None
    model: str | None = None  # its name in requests
    api_key: str | None = None

    def __str__(self) -> str:
        return self.base_url or f"starting a server with {self.start_model or 'the default model'}"


class ReachedServer:
    """It answers. `log` grows while a server of our own runs."""

    def __init__(self, http: HttpClient, answers: AnswerSettings, target: Target, cost: PromptCost) -> None:
        self.client = OpenAIClient(http, answers)
        self.target = target
        self.cost = cost
        self.notes: list[str] = []
        self.log: list[str] | None = None
        self._http = http

    async def metrics(self) -> str | None:
        """The server's own counters, where it has any, and is still there to be asked."""
        try:
            body = await get(self._http, "/metrics")
        except BenchError as error:
            self.notes.append(f"the server's metrics could not be read: {error}")
            return None
        return None if body is None else body.decode("utf-8", "replace")


@asynccontextmanager
async def reach(place: Place, options: AnswerOptions) -> AsyncIterator[ReachedServer]:
    if place.base_url is not None:
        async with _connected(place.base_url, place, options, None) as server:
            yield server
        return
    async with (
        own_server(place.start_model, place.server_options) as own,
        _connected(own.url, place, options, own.command) as server,
    ):
        server.log = own.log
        yield server


@asynccontextmanager
async def _connected(
    url: str, place: Place, options: AnswerOptions, started_with: list[str] | None
) -> AsyncIterator[ReachedServer]:
    http = HttpClient(Origin.parse(url), place.api_key)
    try:
        model = _choose(await served_models(http), place.model, url)
        answers = AnswerSettings(model.id, options.endpoint, options.temperature, options.ignore_eos, options.timeout)
        cost = await _measure_words(OpenAIClient(http, answers), url)
        target = Target(
            base_url=str(http.origin),
            model=model.id,
            max_model_len=model.max_model_len,
            started_with=started_with,
            words_cost=(cost.per_word, cost.fixed) if cost else (1.0, 0.0),
        )
        server = ReachedServer(http, answers, target, cost or PromptCost())
        if cost is None:
            server.notes.append(
                f"{http.origin} does not count tokens for its clients: a word of a prompt and an event with text are each"
                " taken for one token"
            )
        yield server
    finally:
        http.close()


def _choose(models: list[ServedModel], name: str | None, url: str) -> ServedModel:
    if name is not None:
        return next((model for model in models if model.id == name), ServedModel(name))
    if not models:
        raise BenchError(f"{url}: the server lists no model; name one with --model")
    return models[0]


async def _measure_words(client: OpenAIClient, url: str) -> PromptCost | None:
    """None: the server does not tell."""
    counts = []
    for words in PROBES:
        request = PlannedRequest(0, 0, " ".join(words), len(words), 1)
        sample = await client.send(request, client.encode(request), run=0, origin_ns=0, scheduled_ns=0)
        if not sample.complete:
            raise BenchError(f"{url}: a first request failed ({sample.failure}): {sample.detail}")
        counts.append(sample.prompt_tokens)
    once, twice = counts
    if once is None or twice is None:
        return None
    return PromptCost.fit((len(PROBES[0]), once), (len(PROBES[1]), twice))
