"""The command line. Only the command that runs is imported, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trivium.bench.settings import (
    AnswerOptions,
    ArrivalSettings,
    CompareSettings,
    LoadSettings,
    OutputSettings,
    PrefixSettings,
    ReplaySettings,
    SearchSettings,
    SloSettings,
    TargetSettings,
    ThroughputSettings,
    WorkloadSettings,
)
from trivium.commands.options import UsageError, add_options
from trivium.commands.settings import AccessSettings, SamplingSettings, ServeSettings
from trivium.config.environment import check_environment
from trivium.config.options import EngineOptions
from trivium.types.errors import TriviumError

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DESCRIPTION = "Run large language models: chat in the terminal, or serve them with an OpenAI API."
MODEL_HELP = "a stored name, a directory with safetensors, or a .gguf file; default: a small model that is fetched"
# `model` is an argument, and every command reads or writes text.
NO_FLAGS = frozenset({"model", "skip_tokenizer_init"})


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        check_environment(os.environ, _plugin_names)
        command: Callable[[argparse.Namespace], int] = importlib.import_module(args.module).run
        return command(args)
    except UsageError as error:
        print(f"trivium: {error}", file=sys.stderr)
        return 2
    except TriviumError as error:
        print(f"trivium: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away; Python must not complain about it while it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _plugin_names() -> Sequence[str]:
    from trivium.platform.plugins import installed_plugins

    return [*installed_plugins()]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trivium", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"trivium {version()}")
    commands = parser.add_subparsers(title="commands", metavar="command", required=True)
    _add_serve(commands)
    _add_chat(commands)
    _add_run(commands)
    _add_doctor(commands)
    _add_store(commands)
    _add_bench(commands)
    _add_explain(commands)
    return parser


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version("trivium")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _add_serve(commands: _Commands) -> None:
    parser = _add_command(commands, "serve", "serve", "serve models with an OpenAI API")
    parser.add_argument(
        "models", nargs="*", metavar="[NAME=]MODEL", help=f"{MODEL_HELP}. Several are served side by side"
    )
    add_options(parser, ServeSettings, "server")
    add_options(parser, AccessSettings, "access")
    add_options(parser, EngineOptions, "engine", skip=NO_FLAGS)


def _add_chat(commands: _Commands) -> None:
    parser = _add_command(commands, "chat", "chat", "talk with a model in the terminal")
    _add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    _add_answer_options(parser)


def _add_run(commands: _Commands) -> None:
    parser = _add_command(commands, "run", "run", "answer one prompt")
    parser.add_argument("prompt", help="the question; - reads it from standard input")
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    _add_answer_options(parser)


def _add_doctor(commands: _Commands) -> None:
    summary = "tell whether a model will run here, how, and with how much memory, before anything is loaded"
    parser = _add_command(commands, "doctor", "doctor", summary)
    parser.add_argument("model", nargs="?", help="as of serve; without it only the machine is looked at")
    parser.add_argument("--context", type=int, metavar="N", help="tokens of the requests for which room is told")
    parser.add_argument("--json", action="store_true", help="the whole report, with every answer of the platform")
    add_options(parser, ServeSettings, "server", skip=frozenset(ServeSettings.__struct_fields__) - {"host", "port"})
    add_options(parser, EngineOptions, "engine", skip=frozenset({"model"}))


def _add_store(commands: _Commands) -> None:
    pull = _add_command(commands, "pull", "store", "fetch a model into the store")
    _add_model(pull)
    pull.add_argument("--name", metavar="NAME", help="what to call it in the store")
    pull.add_argument(
        "--copy", action="store_true", help="copy files that are on this disk instead of pointing at them"
    )
    _add_command(commands, "list", "store", "list the models in the store")
    for name, summary in (("show", "show what is known of a stored model"), ("rm", "remove a model from the store")):
        parser = _add_command(commands, name, "store", summary)
        parser.add_argument("model", help="its name in the store")


def _add_bench(commands: _Commands) -> None:
    bench = _add_command(commands, "bench", "bench", "measure an OpenAI server, and leave the evidence")
    modes = bench.add_subparsers(title="what to measure", metavar="mode", dest="mode", required=True)
    load = (WorkloadSettings, LoadSettings, ArrivalSettings)
    for name, summary, structs in (
        ("serve", "latency under a load, open (--rate) or closed (--concurrency)", (*load, SloSettings)),
        ("throughput", "tokens a second when all requests come at once", (WorkloadSettings, ThroughputSettings)),
        ("latency", "one request at a time", (WorkloadSettings,)),
        ("prefix", "what is gained where prompts begin alike", (*load, PrefixSettings)),
        ("replay", "arrivals and lengths of a Mooncake or Azure trace", (ReplaySettings, SloSettings)),
        (
            "slo",
            "the highest rate at which the limits are kept",
            (WorkloadSettings, ArrivalSettings, SloSettings, SearchSettings),
        ),
    ):
        parser = _add_mode(modes, name, summary)
        if name == "replay":
            parser.add_argument("trace", help="a Mooncake .jsonl or an Azure .csv file")
        parser.add_argument("start_model", nargs="?", metavar="model", help=f"to start a server with: {MODEL_HELP}")
        for struct in (TargetSettings, *structs, AnswerOptions, OutputSettings):
            add_options(parser, struct, _title(struct))
    compare = _add_mode(modes, "compare", "two servers, measured in turns: is B faster than A?")
    for side in ("a", "b"):
        compare.add_argument(side, help="the address of a server that runs, or a model to start one with")
    for struct in (CompareSettings, *load, AnswerOptions, OutputSettings):
        add_options(compare, struct, _title(struct))
    verify = _add_mode(modes, "verify", "check a bundle: its files, and every figure from the samples")
    verify.add_argument("bundle", help="the folder that a measurement left")
    verify.add_argument("--digest", metavar="HEX", help="the digest that was told with the bundle")


def _add_mode(modes: _Commands, name: str, summary: str) -> argparse.ArgumentParser:
    return modes.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")


def _title(struct: type) -> str:
    return struct.__name__.removesuffix("Settings").removesuffix("Options").lower()


def _add_explain(commands: _Commands) -> None:
    parser = _add_command(commands, "explain", "explain", "say where a request's time went")
    parser.add_argument("request", nargs="?", help="its id, from the answer's x-request-id; default: the slowest ones")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server; default: %(default)s")
    parser.add_argument("--api-key", help="default: TRIVIUM_API_KEY")
    parser.add_argument("--json", action="store_true", help="as the server says it")


def _add_command(commands: _Commands, name: str, module: str, summary: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    parser.set_defaults(module=f"trivium.commands.{module}", command=name)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help=MODEL_HELP)


def _add_answer_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, SamplingSettings, "answers")
    add_options(parser, EngineOptions, "engine", skip=NO_FLAGS | {"seed"})
