"""`trivium serve`: the engines in their processes, the HTTP server in this one."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import logging
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from trivium.commands.energy import energy_meter
from trivium.commands.entrance import read_entrance
from trivium.commands.open_files import raise_open_files_limit
from trivium.commands.options import read_options
from trivium.commands.report import model_report, ready_report
from trivium.commands.served_models import read_offers
from trivium.commands.settings import AccessSettings, ServeSettings
from trivium.commands.start_news import tell_start
from trivium.formats.home import default_root
from trivium.llm.async_llm import AsyncLLM
from trivium.observe.log_lines import set_up_logging
from trivium.records.records import Records
from trivium.serve.access.entrance import Entrance
from trivium.serve.limits import Limits, changed
from trivium.serve.listen import listen, url_of
from trivium.serve.models.fleet import Fleet
from trivium.serve.models.keep_alive import read_keep_alive
from trivium.serve.models.offers import Offer, Offers
from trivium.serve.models.served import ServedModel
from trivium.serve.models.sizes import default_budget, in_mib, read_size
from trivium.serve.request_times import current_request_id
from trivium.types.errors import ConfigError, EngineDeadError

if TYPE_CHECKING:
    from trivium.serve.state import ServerState

log = logging.getLogger(__name__)
log.setLevel(logging.INFO)  # what the server says of itself


def run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    set_up_logging(getattr(args, "log_format", "text"), current_request_id)  # where it is not given, args lack it
    settings, access = read_options(args, ServeSettings), read_options(args, AccessSettings)
    limits = changed(Limits(), settings.limit)
    raise_open_files_limit()
    listener = listen(settings.host, settings.port)
    with listener, closing(_open_records(settings, limits)) as records:
        entrance = read_entrance(access, listener)
        offers = read_offers(args)
        say(f"loading {', '.join(offer.name for offer in offers.staying)}")
        import uvloop

        return uvloop.run(_serve(offers, settings, limits, entrance, listener, records, began))


def _open_records(settings: ServeSettings, limits: Limits) -> Records:
    root = Path(settings.state_dir).expanduser() if settings.state_dir else default_root() / "state"
    return Records.open(root, limits.all_files_bytes)


async def _serve(
    offers: Offers,
    settings: ServeSettings,
    limits: Limits,
    entrance: Entrance,
    listener: socket.socket,
    records: Records,
    began: float,
) -> int:
    def dressed(llm: AsyncLLM, offer: Offer) -> ServedModel:
        dialects = (settings.tool_call_parser, settings.reasoning_parser) if offer.stays else (None, None)
        return ServedModel(llm, limits, lambda event: metrics.on_event(event), *dialects)

    models = _fleet(offers, dressed, settings, limits)
    starting = asyncio.create_task(models.start())
    # The engines' processes begin and load while the web stack is imported here.
    for module in ("trivium.serve.server", "trivium.serve.app"):
        await asyncio.to_thread(importlib.import_module, module)

    from trivium.observe.prices import read_prices
    from trivium.observe.prometheus import Metrics
    from trivium.observe.slo import Slo
    from trivium.serve.app import inner_app, public_app
    from trivium.serve.batch.run import BatchTools
    from trivium.serve.batch.runner import BatchRunner
    from trivium.serve.batch.slots import Slots
    from trivium.serve.disconnect import cancel_and_wait
    from trivium.serve.in_process import InProcess
    from trivium.serve.openai.wording import Wording
    from trivium.serve.responses.background import end_background, fail_abandoned
    from trivium.serve.server import HttpServer, WindDown
    from trivium.serve.state import ServerState

    metrics = Metrics(Slo(settings.slo_first_token_seconds, settings.slo_inter_token_seconds))
    state = ServerState(models, limits, metrics, records, settings.models_on_demand, settings.accept_any_model)
    state.wording = Wording(settings.reasoning_field, settings.named_call_finish)
    if settings.price_file:
        state.prices = read_prices(Path(settings.price_file))
    state.meter = energy_meter()
    exporting = _export_spans(state, settings.otlp_endpoint)
    server = HttpServer(state, listener, public_app(state, entrance), entrance.tls)
    wind_down = WindDown(state, settings.drain_seconds, say)
    wind_down.install()
    reload_on_hangup(entrance)
    server.start()
    stopping = asyncio.create_task(wind_down.wait_asked())
    telling = asyncio.create_task(tell_start(models.start_progress, say))
    drained = True
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        await cancel_and_wait(telling)
        if starting.done():
            await starting
            await fail_abandoned(records)
            for berth in models.loaded():
                for line in model_report(berth.model.card, berth.model.dialect):
                    say(line)
            say(_told_of_others(models, settings))
            say(f"access    {entrance.describe()}")
            url = url_of(listener, "http" if entrance.tls is None else "https")
            has_keys = entrance.keyring.is_needed
            for line in ready_report(models.default.card, url, time.monotonic() - began, needs_key=has_keys):
                say(line)
            slots = Slots(settings.batch_concurrency or offers.default.options.max_num_seqs)
            tools = BatchTools(records, InProcess(inner_app(state)), state.limits, slots, entrance.keyring)
            # What the start made stays: to walk through it in each collection would stop all answers for tens of milliseconds.
            gc.freeze()
            batches = asyncio.create_task(BatchRunner(tools, offers.default.name, state.batch_news).run())
            try:
                await _until_stopped_or_dead(stopping, models)
            finally:
                await cancel_and_wait(batches)
            drained = await wind_down.drain()
    finally:
        starting.cancel()
        telling.cancel()
        await models.close()  # ends what did not end in time with an error of its own, while it can still be told
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


def _fleet(
    offers: Offers, dressed: Callable[[AsyncLLM, Offer], ServedModel], settings: ServeSettings, limits: Limits
) -> Fleet:
    return Fleet(
        offers,
        dressed,
        budget=default_budget() if settings.memory_budget is None else read_size(settings.memory_budget),
        keep_alive=read_keep_alive(settings.keep_alive),
        wait_seconds=limits.model_wait_seconds,
    )


def _told_of_others(models: Fleet, settings: ServeSettings) -> str:
    if settings.models_on_demand == "none":
        return "others    no other models are loaded"
    who = "every route" if settings.models_on_demand == "all" else "Ollama's routes"
    return (
        f"others    {who} may ask for other models in the store; kept for {settings.keep_alive} after their last use, "
        f"{in_mib(models.budget)} for all models together"
    )


async def _until_stopped_or_dead(stopping: asyncio.Task[None], models: Fleet) -> None:
    """An engine that dies is started again; one that keeps dying is given up, and nothing is left to serve."""
    while not stopping.done():
        await asyncio.wait((stopping,), timeout=1.0)
        if models.is_given_up:
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
        except Exception as error:  # nobody foresaw it, and the server goes on as it was
            log.exception("keys, certificate and access log could not all be read again")
            say(f"not read again: {type(error).__name__}")
        else:
            say("read again: keys, certificate and access log")

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


def say(line: str) -> None:
    log.info(line)
