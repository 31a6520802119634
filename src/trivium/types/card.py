"""What the engine says of itself once it is ready: the model it runs and the room it has."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from trivium.types.report import Report

# What a model does: go on with a text; make a vector of one; judge a text or a pair of them.
Task = Literal["generate", "embed", "score"]


class ModelCard(Struct, frozen=True):
    name: str  # what clients call it
    path: str
    family: str
    dtype: str  # of activations
    max_model_len: int  # tokens of prompt and answer together
    vocab_size: int  # rows of the logits; a tokenizer may know fewer
    eos_token_ids: tuple[int, ...]
    block_size: int  # tokens
    num_blocks: int
    task: Task = "generate"
    vector_size: int = 0  # elements that an encoder gives of a text
    kv_cache_dtype: str = "float32"
    num_kv_groups: int = 1  # a token takes room in a block of each
    report: Report = Report()  # what was planned, and what happened

    @property
    def graph(self) -> str:
        """Whether steps are replayed from a recording, and if not, why."""
        return self.report.happened.graph if self.report.happened is not None else ""

    @property
    def kernels(self) -> tuple[str, ...]:
        """One line for each op: which provider runs it and why."""
        return tuple(f"{one.op}: {one.kernel} ({one.reason})" for one in self.report.kernels)
