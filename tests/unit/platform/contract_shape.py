"""The contract as a text: every struct's fields and types, every method's signature. What a plugin can see, it sees here."""

from __future__ import annotations

import inspect
from enum import Enum
from types import ModuleType

import msgspec
from msgspec import Struct

from trivium.platform import contract, contract_v1
from trivium.types import checks, decisions, facts


def shape(modules: list[ModuleType], protocol: type) -> str:
    lines = [line for module in modules for value in vars(module).values() for line in _lines(value, module)]
    methods = sorted(
        f"{protocol.__name__}.{name}{inspect.signature(method)}"
        for name, method in vars(protocol).items()
        if inspect.isfunction(method) and not name.startswith("_")
    )
    attributes = sorted(f"{protocol.__name__}.{name}: {kind}" for name, kind in protocol.__annotations__.items())
    return "\n".join([*sorted(lines), *attributes, *methods]) + "\n"


def _lines(value: object, module: ModuleType) -> list[str]:
    if not isinstance(value, type) or value.__module__ != module.__name__:
        return []
    if issubclass(value, Struct):
        fields = msgspec.structs.fields(value)
        kinds = value.__annotations__
        return [
            f"{value.__name__}.{field.name}: {kinds[field.name]}{'' if field.required else f' = {field.default!r}'}"
            for field in fields
        ]
    if issubclass(value, Enum):
        return [f"{value.__name__}.{member.name} = {member.value!r}" for member in value]
    return []


def present_shape() -> str:
    return shape([contract, checks, decisions, facts], contract.Platform)


def first_shape() -> str:
    return shape([contract_v1], contract_v1.PlatformV1)
