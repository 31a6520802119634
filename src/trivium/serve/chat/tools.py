"""The functions that a chat's model may call, and whether it may, must or must not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from trivium.serve.errors import invalid
from trivium.serve.limits import Limits
from trivium.serve.openai.protocol import ChatRequest, ToolDefinition

# OpenAI allows letters, digits, underscores and dashes; some tools' names are paths.
NAME = re.compile(r"[\w.:/-]{1,256}")


class Tools(Struct, frozen=True):
    """`offered` are as the client wrote them, for the template to show; `definitions` are the same, read."""

    offered: tuple[dict[str, Any], ...] = ()
    definitions: tuple[ToolDefinition, ...] = ()
    choice: Literal["none", "auto", "required"] = "none"
    named: str | None = None  # the one function that must be called
    parallel: bool = True  # several calls may be made at once

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """Of the functions' arguments, by name."""
        return {tool.function.name: tool.function.parameters or {} for tool in self.definitions}


def read_tools(request: ChatRequest, limits: Limits) -> Tools:
    offered, field = _offered(request)
    if len(offered) > limits.tools:
        raise invalid(f"{field} may have {limits.tools} entries at most, but has {len(offered)}", field)
    definitions = [_definition(tool, f"{field}[{place}]") for place, tool in enumerate(offered)]
    choice, named, allowed = _choice(request)
    names = {definition.function.name for definition in definitions}
    if not definitions:
        if choice == "required":
            raise invalid("tool_choice asks for a call, but there are no tools", "tool_choice")
        return Tools()
    if choice == "none":
        return Tools()
    for name in allowed:
        if name not in names:
            raise invalid(f"tool_choice names the function {name[:80]!r}, which is not among the tools", "tool_choice")
    if allowed:
        kept = [place for place, tool in enumerate(definitions) if tool.function.name in allowed]
        offered, definitions = [offered[place] for place in kept], [definitions[place] for place in kept]
    parallel = request.parallel_tool_calls is not False and request.functions is None and named is None
    return Tools(tuple(offered), tuple(definitions), choice, named, parallel)


def _offered(request: ChatRequest) -> tuple[Sequence[dict[str, Any]], str]:
    """And the field that they came in: `functions` is the older name."""
    if request.functions is not None and request.tools is None:
        return [{"type": "function", "function": function} for function in request.functions], "functions"
    return request.tools or [], "tools"


def _definition(tool: dict[str, Any], where: str) -> ToolDefinition:
    if tool.get("type", "function") != "function":
        raise invalid(f"{where}: only tools of type 'function' can be called here", f"{where}.type")
    try:
        definition = msgspec.convert(tool, ToolDefinition)
    except msgspec.ValidationError as error:
        raise invalid(f"{where}: {error}", where) from None
    if not NAME.fullmatch(definition.function.name):
        shown = definition.function.name[:80]
        raise invalid(
            f"{where}: a function's name has 1 to 256 letters, digits and _ - . : /, but is {shown!r}",
            f"{where}.function.name",
        )
    return definition


def _choice(request: ChatRequest) -> tuple[Literal["none", "auto", "required"], str | None, tuple[str, ...]]:
    """(whether calls are made, the one function that must be called, the functions that are allowed or none for all)"""
    given: Any = request.tool_choice if request.tool_choice is not None else request.function_call
    match given:
        case None | "auto":
            return "auto", None, ()
        case "none":
            return "none", None, ()
        case "required" | "any":
            return "required", None, ()
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return "required", name, (name,)
        case {"name": str(name)} if "type" not in given:
            return "required", name, (name,)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}}:
            return mode, None, tuple(_allowed_name(tool) for tool in tools)
    raise invalid(
        "tool_choice must be 'none', 'auto', 'required', a function ({'type': 'function', 'function': {'name': …}})"
        " or allowed tools ({'type': 'allowed_tools', 'allowed_tools': {'mode': …, 'tools': […]}})",
        "tool_choice",
    )


def _allowed_name(tool: Any) -> str:
    match tool:
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
    raise invalid("tool_choice.allowed_tools.tools must hold functions with their names", "tool_choice")
