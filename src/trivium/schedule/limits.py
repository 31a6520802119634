"""The numbers that bound a step and the queue."""

from __future__ import annotations

from msgspec import Struct

from trivium.types.errors import ConfigError


class SchedulerLimits(Struct, frozen=True):
    max_rows: int  # sequences that run at once
    max_batch_tokens: int  # positions computed in one step, of all rows together
    max_model_len: int  # tokens of one sequence, prompt and generated
    max_chunk_tokens: int | None = None  # positions of one row in one step; None: only the batch bounds it
    max_waiting: int | None = None  # sequences that may wait for a row before requests are refused; None: no bound
    max_background_tokens: int = 1  # positions of background sequences in a step, while there are others; 0: none
    prefix_caching: bool = True
    easy_blocks: int | None = None  # beyond so many, cached blocks are evicted before unused memory is taken; None: all

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_batch_tokens", "max_model_len", "max_chunk_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
