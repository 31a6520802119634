"""GET /api/tags, /api/ps, /api/version; POST /api/show, /api/copy, /api/create, /api/pull; DELETE /api/delete"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from trivium.records.variants import Variant
from trivium.serve.body import read_json
from trivium.serve.disconnect import unless_client_goes
from trivium.serve.errors import ApiError, invalid
from trivium.serve.models.berth import Berth
from trivium.serve.ollama.abilities import Abilities, abilities_of, read_abilities
from trivium.serve.ollama.answer import moment
from trivium.serve.ollama.blobs import create_from_blobs
from trivium.serve.ollama.catalog import Entry, all_models, find_model
from trivium.serve.ollama.lines import LineStream, encode_line
from trivium.serve.ollama.modelfile import Modelfile, read_modelfile, write_modelfile, write_parameters
from trivium.serve.ollama.names import not_found, tagged, untagged
from trivium.serve.ollama.protocol import (
    CopyRequest,
    CreateRequest,
    ModelList,
    ModelRequest,
    PullRequest,
    RunningModel,
    RunningModels,
    ShownModel,
    Status,
    Version,
)
from trivium.serve.sse import EventStreamResponse
from trivium.serve.state import ServerState
from trivium.store.hub import HUB_PREFIX
from trivium.store.names import ModelName
from trivium.store.packaged import PACKAGED_MODELS
from trivium.store.progress import PullProgress, PullStage
from trivium.store.store import ModelStore
from trivium.types.errors import ModelFileError, StoreDiskError

MODEL = msgspec.json.Decoder(ModelRequest)
PULL = msgspec.json.Decoder(PullRequest)
CREATE = msgspec.json.Decoder(CreateRequest)
COPY = msgspec.json.Decoder(CopyRequest)

# The version of Ollama whose API this is; clients ask for it to learn what they may use.
OLLAMA_VERSION = "0.12.6"
FOREVER = timedelta(days=36_500)
PROGRESS_SECONDS = 0.1  # between two lines that tell how far a pull is
BESIDE_FILES = ("from_", "system", "parameters", "messages", "license", "template", "quantize", "adapters")
HUB_HOSTS = ("hf.co/", "huggingface.co/")


async def tags(state: ServerState, request: Request) -> Response:
    return _json(ModelList([entry.listed() for entry in await all_models(state)]))


async def running(state: ServerState, request: Request) -> Response:
    entries = {entry.name: entry for entry in await all_models(state)}
    loaded = [(berth, entries.get(untagged(berth.offer.name))) for berth in state.models.loaded()]
    return _json(RunningModels([_running(berth, entry) for berth, entry in loaded if entry is not None]))


def _running(berth: Berth, entry: Entry) -> RunningModel:
    name = tagged(entry.name)
    left = berth.seconds_left
    return RunningModel(
        name=name,
        model=name,
        size=berth.offer.need,
        digest=entry.digest,
        details=entry.details,
        expires_at=moment(datetime.now(UTC) + (FOREVER if left is None else timedelta(seconds=left))),
        size_vram=0,
        context_length=berth.model.card.max_model_len,
    )


async def version(state: ServerState, request: Request) -> Response:
    return _json(Version(OLLAMA_VERSION))


async def show(state: ServerState, request: Request) -> Response:
    entry = await _existing(state, _name(await read_json(request, MODEL, state.limits, type_matters=False)))
    abilities = await _abilities(state, entry)
    return _json(
        ShownModel(
            modelfile=write_modelfile(entry.model),
            parameters=write_parameters(entry.model.parameters),
            template=abilities.template,
            details=entry.details,
            model_info=entry.model_info,
            capabilities=[*abilities.names],
            modified_at=entry.modified_at,
            system=entry.model.system,
            license=entry.model.license,
        )
    )


async def _abilities(state: ServerState, entry: Entry) -> Abilities:
    loaded = {untagged(berth.offer.name): berth.model for berth in state.models.loaded()}
    if (model := loaded.get(entry.model.base)) is not None:
        return abilities_of(model)
    return Abilities() if entry.summary is None else await asyncio.to_thread(read_abilities, entry.summary.path)


async def copy(state: ServerState, request: Request) -> Response:
    """The copy is another name for the same weights."""
    body = await read_json(request, COPY, state.limits, type_matters=False)
    source = await _existing(state, body.source)
    await state.records.variants.put(await _variant(state, body.destination, source.model))
    return Response()


async def delete(state: ServerState, request: Request) -> Response:
    name = _name(await read_json(request, MODEL, state.limits, type_matters=False))
    entry = await _existing(state, name)
    if await state.records.variants.delete(entry.name):
        return Response()
    if state.models.offers.staying_called(entry.name) is not None or not await state.models.unload(entry.name):
        raise invalid(f"model '{name[:200]}' is being served and cannot be deleted", "model")
    if not entry.is_stored:
        raise not_found(name)  # a variant that another request has deleted meanwhile
    await _told(asyncio.to_thread(ModelStore().rm, entry.name))
    return Response()


async def create(state: ServerState, request: Request) -> Response | EventStreamResponse:
    body = await read_json(request, CREATE, state.limits, type_matters=False)
    if body.files:
        return await _create_from_files(state, request, body)
    made = _modelfile(body)
    if made.template:
        raise invalid("a template cannot be given: the base model's own is used", "template")
    if made.adapter:
        raise invalid("adapters are not supported by this server", "adapters")
    base = (await _existing(state, made.base)).model
    variant = replace(
        base,
        system=made.system or base.system,
        parameters=base.parameters | made.parameters,
        messages=made.messages or base.messages,
        license=made.license or base.license,
    )
    await state.records.variants.put(await _variant(state, _name(body), variant))
    statuses = [Status(f"using existing model {base.base}"), Status("writing manifest"), Status("success")]
    return await _tell(state, request, _said(statuses), streams=body.stream is not False)


async def _create_from_files(
    state: ServerState, request: Request, body: CreateRequest
) -> Response | EventStreamResponse:
    assert body.files
    beside = [name for name in BESIDE_FILES if getattr(body, name)]
    if beside:
        raise invalid(f"{beside[0]} cannot come with files: create the model, then another from it", beside[0])
    name = untagged(_name(body))
    if await find_model(state, name) is not None:
        raise invalid(f"model '{name[:200]}' exists; delete it first or choose another name", "model")
    try:
        await create_from_blobs(state, ModelName.parse(name).text, body.files)
    except StoreDiskError as error:
        raise ApiError(500, str(error), code="store_failed") from None
    except ModelFileError as error:
        raise invalid(str(error), "files") from None
    statuses = [Status("parsing files"), Status("writing manifest"), Status("success")]
    return await _tell(state, request, _said(statuses), streams=body.stream is not False)


def _modelfile(body: CreateRequest) -> Modelfile:
    if body.modelfile is not None:
        return read_modelfile(body.modelfile)
    if body.quantize:
        raise invalid("quantize is not supported by this server", "quantize")
    if not body.from_:
        raise invalid("from must name the model that the new one is made from", "from")
    return Modelfile(
        base=body.from_,
        system=body.system or "",
        parameters=body.parameters or {},
        messages=msgspec.to_builtins(body.messages or []),
        license="\n".join(body.license) if isinstance(body.license, list) else body.license or "",
        template=body.template or "",
        adapter=next(iter(body.adapters or ()), ""),
    )


async def _variant(state: ServerState, name: str, like: Variant) -> Variant:
    """Under another name, which no model may have that is not a variant itself."""
    try:
        parsed = ModelName.parse(untagged(name)).text
    except ModelFileError as error:
        raise invalid(str(error), "model") from None
    taken = await find_model(state, parsed)
    if taken is not None and taken.model.base == taken.name:
        raise invalid(f"model '{parsed}' exists and has weights of its own; choose another name", "model")
    return replace(like, name=parsed, modified_at=moment(datetime.now(UTC)))


async def pull(state: ServerState, request: Request) -> Response | EventStreamResponse:
    body = await read_json(request, PULL, state.limits, type_matters=False)
    name = _name(body)
    if await find_model(state, name) is not None:
        statuses = _said([Status("pulling manifest"), Status("success")])
    else:
        statuses = _pulled(_reference(name))
    return await _tell(state, request, statuses, streams=body.stream is not False)


def _reference(name: str) -> str:
    """For the store, which would take paths on this disk too: clients may not name those."""
    plain = untagged(name)
    if plain in PACKAGED_MODELS:
        return plain
    for host in HUB_HOSTS:
        plain = plain.removeprefix(host)
    if "/" not in plain:
        raise not_found(name)
    try:
        return HUB_PREFIX + ModelName.parse(plain).text
    except ModelFileError as error:
        raise invalid(str(error), "model") from None


async def _pulled(reference: str) -> AsyncGenerator[Status]:
    """A pull goes on when nobody listens any more, so that asking again finds it further, or done."""
    latest: PullProgress | None = None

    def note(progress: PullProgress) -> None:
        nonlocal latest
        latest = progress

    yield Status("pulling manifest")
    pulling = asyncio.create_task(asyncio.to_thread(ModelStore().pull, reference, progress=note))
    told: PullProgress | None = None
    while not pulling.done():
        await asyncio.wait({pulling}, timeout=PROGRESS_SECONDS)
        if latest is not None and latest != told:
            told = latest
            yield _status(told)
    await _told(pulling)
    yield Status("verifying sha256 digest")
    yield Status("writing manifest")
    yield Status("success")


def _status(progress: PullProgress) -> Status:
    if progress.stage is PullStage.WAITING:
        return Status(progress.stage)
    return Status(f"{progress.stage} {progress.what}", progress.what, progress.total or 0, progress.done)


async def _tell(
    state: ServerState, request: Request, statuses: AsyncGenerator[Status], *, streams: bool
) -> Response | EventStreamResponse:
    if streams:
        return LineStream(_lines(statuses), state.limits)
    return _json(await unless_client_goes(request.receive, _last(statuses)))


async def _said(statuses: Sequence[Status]) -> AsyncGenerator[Status]:
    for status in statuses:
        yield status


async def _lines(statuses: AsyncGenerator[Status]) -> AsyncGenerator[bytes]:
    async with aclosing(statuses):
        async for status in statuses:
            yield encode_line(status)


async def _last(statuses: AsyncGenerator[Status]) -> Status:
    async with aclosing(statuses):
        async for status in statuses:
            last = status
    return last


async def _existing(state: ServerState, name: str) -> Entry:
    entry = await find_model(state, name)
    if entry is None:
        raise not_found(name)
    return entry


def _name(body: ModelRequest) -> str:
    name = body.model or body.name
    if not name:
        raise invalid("model must be given", "model")
    return name


async def _told(work: Awaitable[object]) -> None:
    """What the store says goes to the client."""
    try:
        await work
    except ModelFileError as error:
        raise ApiError(500, str(error), code="store_failed") from None


def _json(answer: Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
