"""What is wished for, and what becomes of each wish: kept, adjusted, or refused."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Scalar = str | int | float | bool | None


class Wish(Struct, frozen=True, kw_only=True):
    """The options in which a platform may have a say, as they were given; None and "auto": the engine chooses."""

    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    block_size: int = 16  # tokens
    max_model_len: int | None = None  # tokens
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    kernels: str = "auto"
    num_threads: int | None = None
    overlap: bool | None = None


class Keep(Struct, frozen=True, tag="keep"):
    option: str


class Adjust(Struct, frozen=True, tag="adjust"):
    """Of a value that the user gave it is made only where adjustments were accepted, and else counts as refused."""

    option: str
    old: Scalar
    new: Scalar
    reason: str
    severity: Literal["info", "warn"] = "info"  # warn: answers, speed or room differ from what was asked for


class Refuse(Struct, frozen=True, tag="refuse"):
    option: str
    reason: str
    remedy: str


Decision = Keep | Adjust | Refuse
