"""Command-line flags made from the structs that hold the options, and the structs made back from the flags."""

from __future__ import annotations

import argparse
import types
import typing
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

T = TypeVar("T", bound=Struct)


class UsageError(Exception):
    """The command line itself is wrong: one sentence, exit code 2."""


def add_options(
    parser: argparse.ArgumentParser, struct: type[Struct], title: str, skip: frozenset[str] = frozenset()
) -> None:
    """One flag for each field; its help is the field's description and its default. A tuple's may be given again."""
    group = parser.add_argument_group(title)
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        if field.name in skip:
            continue
        kind, meta = _unwrap(hints[field.name])
        default = "" if field.required or field.default in (None, ()) else f" (default: {field.default})"
        help_text = f"{meta.description or ''}{default}".replace("%", "%%")
        flag = "--" + field.name.replace("_", "-")
        common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": help_text}
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        elif get_origin(kind) is Literal:
            group.add_argument(flag, choices=get_args(kind), **common)
        elif get_origin(kind) is tuple:
            group.add_argument(flag, action="append", metavar="TEXT", **common)
        else:
            metavar = {int: "N", float: "X", str: "TEXT"}[kind]
            group.add_argument(flag, type=kind, metavar=metavar, **common)


def read_options(args: argparse.Namespace, struct: type[T], **fixed: Any) -> T:
    given = {field.name: getattr(args, field.name) for field in msgspec.structs.fields(struct) if field.name in args}
    try:
        return msgspec.convert(given | fixed, struct)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        raise UsageError(f"--{place.rstrip('`').replace('_', '-')}: {message[0].lower()}{message[1:]}") from None


def _unwrap(hint: Any) -> tuple[Any, Meta]:
    """The plain type of a field, without `| None`, and what is said of it."""
    meta = Meta()
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        meta = next((extra for extra in extras if isinstance(extra, Meta)), meta)
    if get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
    if get_origin(hint) is Annotated:
        return _unwrap(hint)[0], meta
    return hint, meta
