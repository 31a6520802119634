"""The options of commands that are not the engine's."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from trivium.commands.options import UsageError
from trivium.config.options import AtLeastOne
from trivium.dialects.detect import CALL_NAMES, REASONING_NAMES
from trivium.serve.openai.wording import NamedCallFinish, ReasoningField

# As browsers send it: a scheme and a host, perhaps a port, and nothing after that.
ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+")


class ServeSettings(Struct, frozen=True, kw_only=True):
    host: Annotated[str, Meta(description="address to listen on; 0.0.0.0 opens the server to the network")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(description="port to listen on; 0 takes a free one", ge=0, le=65535)] = 8000
    drain_seconds: Annotated[
        float, Meta(description="for which answers under way may go on after SIGTERM or Ctrl-C", ge=0)
    ] = 60.0
    accept_any_model: Annotated[
        bool, Meta(description="answer requests whatever model they name; many tools hard-code a name")
    ] = False
    reasoning_field: Annotated[
        ReasoningField, Meta(description="under which names chat completions tell reasoning")
    ] = "both"
    named_call_finish: Annotated[
        NamedCallFinish,
        Meta(description="finish_reason of a call to the function that tool_choice names: stop is OpenAI's"),
    ] = "stop"
    models_on_demand: Annotated[
        Literal["ollama", "all", "none"],
        Meta(
            description="who may ask for other models in the store, which are then loaded: clients of Ollama's routes,"
            " of all routes, or nobody"
        ),
    ] = "ollama"
    keep_alive: Annotated[
        str,
        Meta(description="for which such a model stays after its last use: 5m, 1h30m, seconds; 0: not, -1: for ever"),
    ] = "5m"
    memory_budget: Annotated[
        str | None,
        Meta(description="memory for all models together: 8G, 512M, bytes; default: 80% of what is free at the start"),
    ] = None
    state_dir: Annotated[
        str | None,
        Meta(description="where files, batches and responses are kept; default: `state` beside the models"),
    ] = None
    batch_concurrency: Annotated[
        AtLeastOne | None,
        Meta(description="requests of batches that run at once, behind all others; default: --max-num-seqs"),
    ] = None

    limit: Annotated[
        tuple[str, ...],
        Meta(description="NAME=VALUE, another value for one of the limits in docs/operations.md; may be given again"),
    ] = ()
    price_file: Annotated[
        str | None,
        Meta(
            description='what the machine costs, for the cost of requests: {"currency", "machine_hour", "kwh"} in JSON'
        ),
    ] = None
    slo_first_token_seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="what a client should wait at most for its first token, for the goodput in /metrics"),
    ] = None
    slo_inter_token_seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="and between tokens, in the mean of an answer"),
    ] = None
    otlp_endpoint: Annotated[
        str | None, Meta(description="collector of OpenTelemetry traces, e.g. http://127.0.0.1:4318; default: none")
    ] = None

    tool_call_parser: Annotated[
        str | None,
        Meta(
            description=f"how the model writes tool calls: {', '.join(CALL_NAMES)}; default: told from its chat template"
        ),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        Meta(
            description=f"how it marks reasoning: {', '.join(REASONING_NAMES)}, none; default: told from its chat template"
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.tool_call_parser not in (None, *CALL_NAMES):
            raise UsageError(f"--tool-call-parser: {self.tool_call_parser!r} is not one of {', '.join(CALL_NAMES)}")
        if self.reasoning_parser not in (None, "none", *REASONING_NAMES):
            raise UsageError(
                f"--reasoning-parser: {self.reasoning_parser!r} is not one of {', '.join(REASONING_NAMES)}, none"
            )


class AccessSettings(Struct, frozen=True, kw_only=True):
    """Who may ask. With any key set, nothing but /health and the web page answers without one."""

    api_key: Annotated[
        tuple[str, ...],
        Meta(
            description="a key that clients must send; may be given again. Who lists processes sees it:"
            " the environment variable TRIVIUM_API_KEY, or a file, is better"
        ),
    ] = ()
    api_key_file: Annotated[
        str | None, Meta(description="TOML with keys, their names and limits; read again on SIGHUP")
    ] = None
    open_metrics: Annotated[bool, Meta(description="/metrics answers without a key")] = False
    cors_origin: Annotated[
        tuple[str, ...],
        Meta(
            description="origin of pages that browsers may let ask here, as https://chat.example.com; * is all;"
            " may be given again"
        ),
    ] = ()
    allowed_host: Annotated[
        tuple[str, ...],
        Meta(
            description="on a loopback address: a name by which the server may be called beside localhost, as behind"
            " a proxy; * is any; may be given again"
        ),
    ] = ()
    tls_cert: Annotated[
        str | None, Meta(description="PEM file with the certificate and its chain; read again on SIGHUP")
    ] = None
    tls_key: Annotated[
        str | None, Meta(description="PEM file with its key; default: in the file of the certificate")
    ] = None
    tls_min_version: Annotated[Literal["1.2", "1.3"], Meta(description="oldest version of TLS that is spoken")] = "1.2"
    access_log: Annotated[
        str | None,
        Meta(description="file for a line of JSON about each request; - is standard output; opened again on SIGHUP"),
    ] = None
    share_prefixes: Annotated[
        bool,
        Meta(
            description="callers reuse each other's cached prompts; how fast an answer begins then tells what others asked"
        ),
    ] = False

    def __post_init__(self) -> None:
        for origin in self.cors_origin:
            if not ORIGIN.fullmatch(origin):
                raise UsageError(f"--cors-origin: {origin!r} is not like https://chat.example.com")
        if self.tls_key is not None and self.tls_cert is None:
            raise UsageError("--tls-key: there is no --tls-cert for it")


class SamplingSettings(Struct, frozen=True, kw_only=True):
    """Of answers in the terminal: a little sharper than the model's own distribution, for small models ramble."""

    temperature: Annotated[float, Meta(description="0 always takes the likeliest token", ge=0)] = 0.6
    top_p: Annotated[float, Meta(description="draw from the likeliest tokens with this total", gt=0, le=1)] = 0.95
    top_k: Annotated[int, Meta(description="draw from so many tokens at most; 0 is all", ge=0)] = 0
    min_p: Annotated[float, Meta(description="drop tokens below this share of the likeliest", ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(description="above 1: what was said becomes less likely", gt=0)] = 1.0
    max_tokens: Annotated[
        AtLeastOne | None, Meta(description="longest answer, tokens; default: what the context holds")
    ] = None
    seed: Annotated[int | None, Meta(description="makes the answer repeatable")] = None
    stop: Annotated[str | None, Meta(description="text at which the answer ends")] = None
