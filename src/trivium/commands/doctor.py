"""`trivium doctor [MODEL]`: will it run here, how, and with how much memory; told before anything is loaded."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from msgspec.structs import replace

from trivium.commands.energy import check_telemetry, energy_meter
from trivium.commands.model import stored_model
from trivium.commands.options import read_options
from trivium.commands.report_lines import doctor_report
from trivium.commands.settings import ServeSettings
from trivium.config.options import EngineOptions
from trivium.engine.preview import Preview, PreviewRequest, preview
from trivium.llm.text_side import read_text_side
from trivium.serve.listen import check_port
from trivium.store import ModelStore
from trivium.types.errors import TriviumError
from trivium.types.report import Refusal, Report


def run(args: argparse.Namespace) -> int:
    """0: it will run. 1: it will not, or a check failed."""
    options, server = read_options(args, EngineOptions, model=args.model or ""), read_options(args, ServeSettings)
    try:
        path = None if args.model is None else ModelStore().resolve(stored_model(args.model))
    except TriviumError as error:
        found = Preview(Report(refusal=Refusal(type(error).__name__, str(error))))
    else:
        found = diagnose(options, path, args.context)
    port = check_port(server.host, server.port, is_asked_for="port" in args)
    telemetry = None if found.facts is None else check_telemetry(found.facts.running.telemetry, energy_meter())
    checks = (*found.report.checks, *filter(None, [telemetry]), port)
    found = replace(found, report=replace(found.report, checks=checks))
    if args.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        for line in doctor_report(found.report):
            print(line)
    return 0 if found.report.runs else 1


def diagnose(options: EngineOptions, path: Path | None, context: int | None = None) -> Preview:
    """`path`: of the model; None: only the machine is looked at."""
    if path is None:
        return preview(PreviewRequest(options, has_model=False))
    found = preview(PreviewRequest(replace(options, model=str(path)), context=context))
    if found.report.refusal is None and not options.skip_tokenizer_init:
        try:
            read_text_side(path)
        except TriviumError as error:
            return replace(found, report=replace(found.report, refusal=Refusal(type(error).__name__, str(error))))
    return found
