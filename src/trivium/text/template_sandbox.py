"""The jinja2 environment that chat templates run in.

A template comes with a model's files, so it is a stranger's program. It reads no files and no Python internals (the
sandbox), it changes nothing that it is given (the immutable one), and what it may do is bounded: turns of loops and
calls of macros are timed, and the sizes of the texts and lists that it makes are added up.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

from jinja2 import TemplateError, ext, nodes, pass_environment
from jinja2.environment import Template
from jinja2.filters import do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SECONDS = 2.0  # of the thread's own time in one rendering; long conversations take some milliseconds
STEPS_PER_LOOK = 256  # turns of loops and calls of macros between two looks at the clock
MAX_SIZE = 64_000_000  # characters of a text; an item of a list counts as 8
MAX_MADE = 2_000_000_000  # the same, of all texts and lists; templates that grow a text by `+` make it anew each time
MAX_INT_BITS = 4096
MAX_INDENT = 64

# Ways to grow a text out of nothing that no chat template needs.
_REFUSED_FILTERS = ("batch", "center", "lipsum", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr")
_REFUSED_METHODS = frozenset(("center", "expandtabs", "ljust", "rjust", "to_bytes", "translate", "zfill"))
# A field width of five digits or more, or one that is itself an argument.
_WIDE_FIELD = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|\{[^}]*\{")


class RaisedByTemplate(TemplateError):
    """The template called raise_exception: its sentence is meant for the one who sent the messages."""


class TemplateLimitError(TemplateError):
    """The template did more than any honest one does."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Used by one thread at a time: it knows what the rendering in progress has done."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, _GenerationBlock])
        for name in _REFUSED_FILTERS:
            self.filters.pop(name, None)
        self.globals.pop("lipsum", None)
        self.filters.update(tojson=_tojson, join=_join, replace=_replace, indent=_indent, format=_format)
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.reset()

    def reset(self, seconds: float = MAX_SECONDS) -> None:
        """Before each rendering."""
        self._seconds = seconds
        self._end = time.thread_time() + seconds
        self._steps = 0
        self._made = 0

    def compile_template(self, source: str) -> Template:
        return self.from_string(_Stepping().visit(self.parse(source)))

    @property
    def step(self) -> None:
        """Read by compiled templates in each loop and macro: the cheapest way in for them is an attribute."""
        self._steps += 1
        if self._steps % STEPS_PER_LOOK == 0 and time.thread_time() > self._end:
            raise TemplateLimitError(f"it ran for more than {self._seconds:g} seconds")

    def make(self, size: int) -> None:
        """Called before a text or list of this size is made."""
        self._made += size
        if size > MAX_SIZE or self._made > MAX_MADE:
            raise TemplateLimitError(f"it makes a text or list of size {size}")

    # The library joins with this what a template, a macro or a block puts out.
    def concat(self, parts: Iterable[str]) -> str:
        pieces = []
        size = 0
        for part in parts:
            pieces.append(part)
            size += len(part)
            if size > MAX_SIZE:
                break
        self.make(size)
        return "".join(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            self.make(_size(left) + _size(right))
        elif operator == "*":
            self._check_product(left, right)
        elif operator == "**":
            self._check_int_bits(_bits(left) * right if isinstance(right, int) else 0)
        elif operator == "%" and isinstance(left, str):
            _check_fields(left)
        return super().call_binop(context, operator, left, right)

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            self._check_int_bits(_bits(left) + _bits(right))
        for sequence, times in ((left, right), (right, left)):
            if hasattr(sequence, "__len__") and isinstance(times, int):
                self.make(_size(sequence) * max(times, 0))

    def _check_int_bits(self, bits: int) -> None:
        if bits > MAX_INT_BITS:
            raise TemplateLimitError(f"it makes an integer of {bits} bits")

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _REFUSED_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_fields(value.__self__)
        return wrapped

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, BuiltinMethodType) and isinstance(obj.__self__, str):
            if obj.__name__ == "join" and len(args) == 1:
                return _join(self, args[0], obj.__self__)
            if obj.__name__ == "replace" and len(args) in (2, 3):
                return _replace(self, obj.__self__, *args)
        return super().call(context, obj, *args, **kwargs)


class _Stepping(NodeTransformer):
    """Puts a step into each loop and macro, and has `~` make texts the way the `join` filter does."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self._put_step(node)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self._put_step(node)
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        self._put_step(node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, "join", [], [], None, None, lineno=node.lineno)

    def _put_step(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> None:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("step")).set_lineno(node.lineno))


class _GenerationBlock(ext.Extension):
    """`{% generation %}` marks what the model wrote, for training; here its body is all there is to it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise RaisedByTemplate(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the escapes for HTML that jinja2's own has."""
    if indent is not None and indent > MAX_INDENT:
        raise TemplateLimitError(f"it indents by {indent}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_environment
def _join(env: TemplateSandbox, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = value if attribute is None else map(make_attrgetter(env, attribute), value)
    texts = [str(item) for item in items]
    env.make(sum(map(len, texts)) + len(str(d)) * len(texts))
    return str(d).join(texts)


@pass_environment
def _replace(env: TemplateSandbox, s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = str(s), str(old), str(new)
    env.make(len(text) + text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


@pass_environment
def _indent(env: TemplateSandbox, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    each = len(width) if isinstance(width, str) else width
    env.make(len(s) + (str(s).count("\n") + 1) * each)
    return do_indent(s, width, first, blank)


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    _check_fields(value)
    return str(value) % (kwargs or args)


def _check_fields(format: str) -> None:
    if _WIDE_FIELD.search(format):
        raise TemplateLimitError("it formats a value into a field of 10000 characters or more")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else 8 * len(value)


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
