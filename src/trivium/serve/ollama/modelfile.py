"""Modelfiles: the text from which a variant is made, and back."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

from msgspec import Struct

from trivium.records.variants import Variant
from trivium.serve.errors import invalid
from trivium.serve.ollama.protocol import Role

COMMANDS = frozenset({"FROM", "PARAMETER", "SYSTEM", "MESSAGE", "LICENSE", "TEMPLATE", "ADAPTER", "REQUIRES"})
ROLES: tuple[str, ...] = get_args(Role)
QUOTES = '"""'
_COMMAND = re.compile(r"\s*(\w+)[ \t]+")


class Modelfile(Struct):
    base: str = ""
    system: str = ""
    parameters: dict[str, Any] = {}
    messages: list[dict[str, Any]] = []
    license: str = ""
    template: str = ""
    adapter: str = ""


def read_modelfile(text: str) -> Modelfile:
    found = Modelfile()
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        command = _COMMAND.match(line)
        if command is None or command[1].upper() not in COMMANDS:
            raise invalid(f"the Modelfile has a line that begins with no command: {line[:80]!r}", "modelfile")
        _apply(found, command[1].upper(), line[command.end() :].strip(), lines)
    if not found.base:
        raise invalid("the Modelfile has no FROM line", "modelfile")
    return found


def _apply(found: Modelfile, command: str, rest: str, lines: list[str]) -> None:
    """`lines`: those that follow, of which a quoted value may take some."""
    match command:
        case "FROM":
            found.base = rest
        case "PARAMETER":
            name, _, value = rest.partition(" ")
            _add_parameter(found.parameters, name.lower(), _value(_unquoted(value.strip(), lines)))
        case "MESSAGE":
            role, _, content = rest.partition(" ")
            if role not in ROLES:
                raise invalid(
                    f"the Modelfile has a MESSAGE of {role[:80]!r}, who is none of {', '.join(ROLES)}", "modelfile"
                )
            found.messages.append({"role": role, "content": _unquoted(content.strip(), lines)})
        case "SYSTEM" | "LICENSE" | "TEMPLATE" | "ADAPTER":
            setattr(found, command.lower(), _unquoted(rest, lines))


def _add_parameter(parameters: dict[str, Any], name: str, value: Any) -> None:
    """`stop` may come several times."""
    parameters[name] = [*parameters.get(name, []), str(value)] if name == "stop" else value


def _unquoted(text: str, lines: list[str]) -> str:
    if not text.startswith(QUOTES):
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    text = text.removeprefix(QUOTES)
    while QUOTES not in text:
        if not lines:
            raise invalid(f"the Modelfile has {QUOTES} that are never closed", "modelfile")
        text += "\n" + lines.pop(0)
    return text.partition(QUOTES)[0]


def _value(text: str) -> Any:
    """A number or a truth value where it is one."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def write_modelfile(model: Variant) -> str:
    lines = [f"FROM {model.base}"]
    if model.system:
        lines.append(f"SYSTEM {QUOTES}{model.system}{QUOTES}")
    lines += [f"PARAMETER {line}" for line in write_parameters(model.parameters).splitlines()]
    lines += [f"MESSAGE {message['role']} {QUOTES}{message.get('content', '')}{QUOTES}" for message in model.messages]
    if model.license:
        lines.append(f"LICENSE {QUOTES}{model.license}{QUOTES}")
    return "\n".join(lines) + "\n"


def write_parameters(parameters: dict[str, Any]) -> str:
    """One to a line."""
    pairs = [
        (name, value)
        for name, values in parameters.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    return "\n".join(f"{name} {json.dumps(value)}" for name, value in pairs)
