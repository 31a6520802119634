"""Chat templates: from messages to the text of a prompt."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
from jinja2 import TemplateError, TemplateSyntaxError

from trivium.faults import fault_point
from trivium.formats.gguf import GGUFFile
from trivium.formats.huggingface import HFDirectory
from trivium.formats.source import ModelSource
from trivium.text.special_tokens import TOKENIZER_CONFIG_FILE, read_special_tokens
from trivium.text.template_sandbox import MAX_SECONDS, RaisedByTemplate, TemplateLimitError, TemplateSandbox
from trivium.types.errors import InvalidRequestError, ModelFileError

DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"  # preferred where a model has it and tools are given

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""

# What a rendering can go wrong with when a template meets messages that it was not written for.
_RENDER_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """The templates of one model, compiled once. May be used from several threads: they render in turn."""

    def __init__(
        self, templates: Mapping[str, str], special_tokens: Mapping[str, str], origin: str, *, is_own: bool = True
    ) -> None:
        """`templates` by name, with one named "default" unless there is only one."""
        self.origin = origin  # where the template is from, in words
        self.is_own = is_own  # the model's
        self.source = "\n".join(templates.values())
        sandbox, lock = TemplateSandbox(), threading.Lock()
        self._templates = {
            name: _Template(name, source, special_tokens, sandbox, lock) for name, source in templates.items()
        }

    @classmethod
    def from_source(cls, source: ModelSource) -> ChatTemplate:
        found = _read_gguf(source) if isinstance(source, GGUFFile) else _read_huggingface(source)
        if not found:
            origin = "ChatML, since the model has no chat template of its own"
            return cls({DEFAULT_TEMPLATE: CHATML}, {}, origin, is_own=False)
        return cls(found, read_special_tokens(source), f"the model's own, from {source.path.name}")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **extra: Any,
    ) -> str:
        """`continue_final_message` leaves the last message open, so that the model goes on with it.

        `extra` is what else the template may look at: documents, enable_thinking …
        """
        fault_point("text.template")
        template = self._choose(bool(tools))
        try:
            prepared = template.prepare(_plain(messages, "messages"))
            variables = {
                "documents": None,
                **_plain(extra, "the template's arguments"),
                "tools": _plain(list(tools), "tools") if tools else None,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            }
        except RecursionError:
            raise InvalidRequestError("messages are nested too deeply", param="messages") from None
        if continue_final_message:
            return _render_open(template, prepared, variables)
        return template.render(prepared, variables)

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the model is told of tools that are given."""
        return self._choose(True).shows_tools

    @cached_property
    def shows_calls(self) -> bool:
        """Whether calls in past turns are shown to the model."""
        return self._choose(True).shows_calls

    @cached_property
    def shows_results(self) -> bool:
        """Whether the results of calls are."""
        return self._choose(True).shows_results

    @cached_property
    def shows_several_calls(self) -> bool:
        """Whether all calls of one past turn are shown, and not only the first."""
        return self._choose(True).shows_several_calls

    @cached_property
    def takes_system(self) -> bool:
        return self._choose(True).takes_system

    def _choose(self, with_tools: bool) -> _Template:
        if with_tools and TOOL_TEMPLATE in self._templates:
            return self._templates[TOOL_TEMPLATE]
        if DEFAULT_TEMPLATE in self._templates:
            return self._templates[DEFAULT_TEMPLATE]
        return next(iter(self._templates.values()))


class _Template:
    """One compiled template, and what trying it out tells about the messages that it wants."""

    def __init__(
        self,
        name: str,
        source: str,
        special_tokens: Mapping[str, str],
        sandbox: TemplateSandbox,
        lock: threading.Lock,
    ) -> None:
        self._source = source
        self._special_tokens = special_tokens
        self._sandbox = sandbox
        self._lock = lock
        try:
            self._compiled = sandbox.compile_template(source)
        except (TemplateSyntaxError, RecursionError) as error:
            raise ModelFileError(f"the chat template {name!r} cannot be compiled: {error}") from None

    def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], seconds: float = MAX_SECONDS
    ) -> str:
        with self._lock:
            self._sandbox.reset(seconds)
            try:
                return self._compiled.render({**self._special_tokens, **variables, "messages": messages})
            except RaisedByTemplate as error:
                raise InvalidRequestError(str(error), param="messages") from None
            except TemplateLimitError as error:
                raise InvalidRequestError(f"the chat template was stopped, since {error}", param="messages") from None
            except _RENDER_ERRORS as error:
                raise InvalidRequestError(
                    f"the model's chat template cannot render these messages: {error}", param="messages"
                ) from None

    def prepare(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages in the forms that this template reads."""
        return [self._prepare(message, place) for place, message in enumerate(messages)]

    def _prepare(self, message: dict[str, Any], place: int) -> dict[str, Any]:
        if not isinstance(message, dict):
            raise InvalidRequestError(f"messages[{place}] is not an object", param=f"messages[{place}]")
        if message.get("role") == "developer" and "developer" not in self._source:
            message["role"] = "system"
        content = message.get("content")
        if isinstance(content, list) and not self._reads_parts:
            message["content"] = _flatten(content, place)
        elif isinstance(content, str) and not self._reads_strings and self._reads_parts:
            message["content"] = [{"type": "text", "text": content}]
        for call in message.get("tool_calls") or ():
            function = call.get("function", call) if isinstance(call, dict) else {}
            if "arguments" in function:
                function["arguments"] = self._arguments(function["arguments"], place)
        reasoning = next((message[name] for name in _REASONING_FIELDS if message.get(name) is not None), None)
        if reasoning is not None:  # templates look for it under either name
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        return message

    def _arguments(self, arguments: Any, place: int) -> Any:
        if isinstance(arguments, str):
            arguments = _parse_arguments(arguments, place)
        return arguments if self._reads_mappings else json.dumps(arguments, ensure_ascii=False)

    @cached_property
    def shows_tools(self) -> bool:
        return _NEEDLE in self._try([self._user("u")], [_tool(_NEEDLE)])

    @cached_property
    def shows_calls(self) -> bool:
        return self._shows_calls(1)

    @cached_property
    def shows_several_calls(self) -> bool:
        return self._shows_calls(2)

    @cached_property
    def shows_results(self) -> bool:
        return self._shows(["f"], ["call00000"], _NEEDLE, [_NEEDLE])

    def _shows_calls(self, count: int) -> bool:
        names = [f"{_NEEDLE}{number}" for number in range(count)]
        return self._shows(names, [f"call0000{number}" for number in range(count)], "r", names)

    def _shows(self, names: list[str], ids: list[str], result: str, wanted: list[str]) -> bool:
        """Whether a turn of calls, and the results after it, show all that is wanted."""
        calls = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": self._no_arguments}}
            for id, name in zip(ids, names, strict=True)
        ]
        results = [{"role": "tool", "content": result, "tool_call_id": id, "name": "f"} for id in ids]
        # Some templates look at tool calls only where the content is null, some fail on a null.
        turns = [{"role": "assistant", "content": content, "tool_calls": calls} for content in (None, "")]
        shown = [self._try([self._user("u"), turn, *results], [_tool("f")]) for turn in turns]
        return any(all(name in text for name in wanted) for text in shown)

    @property
    def _no_arguments(self) -> dict[str, Any] | str:
        return {} if self._reads_mappings else "{}"

    @cached_property
    def takes_system(self) -> bool:
        system = {**self._user(_NEEDLE), "role": "system"}
        return _NEEDLE in self._try([system, self._user("u")], [_tool("f")])

    def _user(self, text: str) -> dict[str, Any]:
        content = text if self._reads_strings or not self._reads_parts else [{"type": "text", "text": text}]
        return {"role": "user", "content": content}

    @cached_property
    def _reads_strings(self) -> bool:
        return _NEEDLE in self._try([{"role": "user", "content": _NEEDLE}])

    @cached_property
    def _reads_parts(self) -> bool:
        """Whether content may be a list of parts; a template that knows only strings prints the list as it is."""
        tried = self._try([{"role": "user", "content": [{"type": "text", "text": _NEEDLE}]}])
        return _NEEDLE in tried and "'type'" not in tried and '"type"' not in tried

    @cached_property
    def _reads_mappings(self) -> bool:
        """Whether the arguments of a tool call are wanted as a mapping, and not as the JSON text of one."""

        def tried(arguments: Any, content: str | None) -> str:
            call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}}
            turn = {"role": "assistant", "content": content, "tool_calls": [call]}
            return self._try([{"role": "user", "content": "u"}, turn])

        # Some templates look at tool calls only where the content is null, some fail on a null.
        as_mappings = [tried({_NEEDLE: _NEEDLE}, content) for content in (None, "")]
        if any(_NEEDLE in text and f"'{_NEEDLE}'" not in text for text in as_mappings):
            return True
        return not any(_NEEDLE in tried(json.dumps({_NEEDLE: _NEEDLE}), content) for content in (None, ""))

    def _try(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        try:
            return self.render(messages, {"tools": tools, "add_generation_prompt": False}, _TRIAL_SECONDS)
        except InvalidRequestError:
            return ""


def _tool(name: str) -> dict[str, Any]:
    function = {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


_NEEDLE = "needle"
_TRIAL_SECONDS = 0.2  # for a message or two


def _flatten(parts: list[Any], place: int) -> str:
    texts = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            where = f"messages[{place}].content[{number}]"
            raise InvalidRequestError(f"{where} is of type {kind!r}, but this model reads text only", param=where)
    return "\n".join(texts)


def _parse_arguments(text: str, place: int) -> dict[str, Any]:
    where = f"messages[{place}].tool_calls"
    try:
        arguments = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise InvalidRequestError(f"{where}: the arguments of a call are not JSON: {error}", param=where) from None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{where}: the arguments of a call are not a JSON object", param=where)
    return arguments


def _render_open(template: _Template, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
    """The prompt up to the end of the last message's text."""
    mark = "\ue000open\ue000"
    last = messages[-1] if messages else {}
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = f"{content}{mark} "
    elif isinstance(content, list) and content and isinstance(content[-1].get("text"), str):
        content[-1]["text"] += f"{mark} "
    else:
        raise InvalidRequestError("the last message has no text to continue", param="messages")
    before, found, after = template.render(messages, variables).rpartition(mark)
    if not found:
        raise InvalidRequestError("the chat template leaves out the message that is to be continued", param="messages")
    # A template that trims texts has taken the space after the mark, and would have taken those before it.
    return before if after.startswith(" ") else before.rstrip()


def _plain(value: Any, what: str) -> Any:
    """A copy made of JSON's types only: other objects have methods that a template must not reach."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, what) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, what) for item in value]
    # Of a subclass, such as an enumeration's, only the plain value.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise InvalidRequestError(f"{what} may hold only JSON values, not a {type(value).__name__}")


def _read_gguf(source: GGUFFile) -> dict[str, str]:
    key = "tokenizer.chat_template"
    named = {
        name.removeprefix(f"{key}."): source.get_str(name) for name in source.metadata if name.startswith(f"{key}.")
    }
    default = source.get_str(key, None)
    return named if default is None else {DEFAULT_TEMPLATE: default, **named}


def _read_huggingface(source: HFDirectory) -> dict[str, str]:
    """Template files come before what the configuration says."""
    file = source.path / "chat_template.jinja"
    if file.exists():
        more = sorted((source.path / "additional_chat_templates").glob("*.jinja"))
        return {DEFAULT_TEMPLATE: file.read_text("utf-8"), **{path.stem: path.read_text("utf-8") for path in more}}
    configured = source.read_json("chat_template.json") or source.read_json(TOKENIZER_CONFIG_FILE)
    match configured.get("chat_template"):
        case str(template):
            return {DEFAULT_TEMPLATE: template}
        case list(entries):
            try:
                return {entry.name: entry.template for entry in msgspec.convert(entries, list[_NamedTemplate])}
            except msgspec.ValidationError as error:
                raise ModelFileError(f"{source.path}: the list under chat_template cannot be read: {error}") from None
    return {}


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str
