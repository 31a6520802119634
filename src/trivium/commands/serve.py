"""`trivium serve`: the engine in its process, the HTTP server in this one."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import socket
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivium.commands.entrance import read_entrance
from trivium.commands.model import stored_model
from trivium.commands.options import read_options
from trivium.commands.report import start_report
from trivium.commands.settings import AccessSettings, ServeSettings
from trivium.config.options import EngineOptions
from trivium.engine.client import EngineState
from trivium.formats.home import default_root
from trivium.llm.async_llm import AsyncLLM
from trivium.records.records import Records
from trivium.serve.access.entrance import Entrance
from trivium.serve.limits import Limits, changed
from trivium.serve.listen import listen, url_of
from trivium.types.errors import ConfigError, EngineDeadError

if TYPE_CHECKING:
    from trivium.serve.state import ServerState


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    settings, access = read_options(args, ServeSettings), read_options(args, AccessSettings)
    limits = changed(Limits(), settings.limit)
    listener = listen(settings.host, settings.port)
    with listener, closing(_open_records(settings, limits)) as records:
        entrance = read_entrance(access, listener)
        model = stored_model(args.model)
        options = read_options(args, EngineOptions, model=model)
        say(f"loading {model}")
        import uvloop

        return uvloop.run(_serve(options, settings, limits, entrance, listener, records, began))


def _open_records(settings: ServeSettings, limits: Limits) -> Records:
    root = Path(settings.state_dir).expanduser() if settings.state_dir else default_root() / "state"
    return Records.open(root, limits.all_files_bytes)


async def _serve(
    options: EngineOptions,
    settings: ServeSettings,
    limits: Limits,
    entrance: Entrance,
    listener: socket.socket,
    records: Records,
    began: float,
) -> int:
    llm = AsyncLLM(**msgspec.structs.asdict(options))
    starting = asyncio.create_task(llm.start())
    # The engine's process begins and loads while the web stack is imported here.
    for module in ("trivium.serve.server", "trivium.serve.app"):
        await asyncio.to_thread(importlib.import_module, module)

    from trivium.observe.prices import read_prices
    from trivium.observe.prometheus import Metrics
    from trivium.serve.app import inner_app, public_app
    from trivium.serve.batch.run import BatchTools
    from trivium.serve.batch.runner import BatchRunner
    from trivium.serve.batch.slots import Slots
    from trivium.serve.disconnect import cancel_and_wait
    from trivium.serve.in_process import InProcess
    from trivium.serve.models.served import ServedModel
    from trivium.serve.responses.background import end_background, fail_abandoned
    from trivium.serve.server import HttpServer, WindDown
    from trivium.serve.state import ServerState

    metrics = Metrics()
    model = ServedModel(llm, limits, metrics.on_event, settings.tool_call_parser, settings.reasoning_parser)
    state = ServerState(model, limits, metrics, records, accept_any_model=settings.accept_any_model)
    if settings.price_file:
        state.prices = read_prices(Path(settings.price_file))
    exporting = _export_spans(state, settings.otlp_endpoint)
    server = HttpServer(state, listener, public_app(state, entrance), entrance.tls)
    wind_down = WindDown(state, settings.drain_seconds, say)
    wind_down.install()
    reload_on_hangup(entrance)
    server.start()
    stopping = asyncio.create_task(wind_down.wait_asked())
    drained = True
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            await fail_abandoned(records)
            dialect = None if llm.template is None else model.dialect
            say(f"access    {entrance.describe()}")
            url = url_of(listener, "http" if entrance.tls is None else "https")
            has_keys = entrance.keyring.is_needed
            for line in start_report(llm.card, dialect, url, time.monotonic() - began, needs_key=has_keys):
                say(line)
            slots = Slots(settings.batch_concurrency or options.max_num_seqs)
            tools = BatchTools(records, InProcess(inner_app(state)), state.limits, slots, entrance.keyring)
            batches = asyncio.create_task(BatchRunner(tools, llm.card.name, state.batch_news).run())
            try:
                await _until_stopped_or_dead(stopping, llm)
            finally:
                await cancel_and_wait(batches)
            drained = await wind_down.drain()
    finally:
        starting.cancel()
        await llm.close()  # ends what did not end in time with an error of its own, while it can still be told
        await end_background(state)
        await server.stop(at_once=not drained)
        await cancel_and_wait(*exporting)
    say("stopped")
    return 0


def _export_spans(state: ServerState, endpoint: str | None) -> list[asyncio.Task[None]]:
    from trivium.observe.spans import SpanExporter

    if endpoint is None:
        return []
    exporter = SpanExporter(endpoint)
    state.listeners.append(exporter.on_event)
    return [asyncio.create_task(exporter.run())]


async def _until_stopped_or_dead(stopping: asyncio.Task[None], llm: AsyncLLM) -> None:
    """An engine that dies is started again; one that keeps dying is given up, and nothing is left to serve."""
    while not stopping.done():
        await asyncio.wait((stopping,), timeout=1.0)
        if llm.state is EngineState.DEAD:
            raise EngineDeadError("the engine died again and again, and was given up")


def reload_on_hangup(entrance: Entrance) -> None:
    """SIGHUP reads files again where there are any; else it ends the program, as the closing of a terminal should."""
    if not entrance.has_files:
        return

    def reload() -> None:
        try:
            entrance.reload()
        except ConfigError as error:
            say(f"not read again: {error}")
        else:
            say("read again: keys, certificate and access log")

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
