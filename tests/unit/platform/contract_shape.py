"""The contract as a text: every struct's fields and types, every method's signature. What a plugin can see, it sees here."""

from __future__ import annotations

import inspect
from enum import Enum
from types import ModuleType

import msgspec
from msgspec import Struct

from trivium.platform import contract, contract_v1
from trivium.types import checks, decisions, facts


def shape(modules: list[ModuleType], shared: list[type], protocol: type) -> str:
    """`shared`: structs of modules that hold others' too."""
    own = [value for module in modules for value in vars(module).values() if _is_of(value, module)]
    lines = [line for kind in [*own, *shared] for line in _lines(kind)]
    methods = sorted(
        f"{protocol.__name__}.{name}{inspect.signature(method)}"
        for name, method in vars(protocol).items()
        if inspect.isfunction(method) and not name.startswith("_")
    )
    attributes = sorted(f"{protocol.__name__}.{name}: {kind}" for name, kind in protocol.__annotations__.items())
    return "\n".join([*sorted(lines), *attributes, *methods]) + "\n"


def _is_of(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


def _lines(value: type) -> list[str]:
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
    return shape([contract, checks, decisions], [facts.ModelFacts, facts.Capabilities], contract.Platform)


def first_shape() -> str:
    return shape([contract_v1], [facts.Capabilities], contract_v1.PlatformV1)
