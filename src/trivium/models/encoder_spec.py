"""The facts of an encoder, read once from the files of its directory. Numbers and names only."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from trivium.models.spec import check_num_layers, check_size
from trivium.types.errors import ModelFileError

Pooling = Literal["mean", "cls", "max", "last"]
ElementFunction = Literal["gelu", "gelu_tanh", "relu", "silu"]


class EncoderSpec(Struct, frozen=True, kw_only=True):
    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    num_positions: int  # rows of the table of positions
    first_position: int  # of a text's first token, in that table
    max_position: int  # tokens of the longest text
    trained_length: int  # tokens that texts were cut to in training, at most max_position
    num_token_types: int  # of segments: which of a pair of texts a token is of
    norm_eps: float
    activation: ElementFunction
    dtype: str  # of the checkpoint's weights
    pooling: Pooling
    num_labels: int = 0  # of a model that scores texts, or pairs of them; 0: it makes vectors

    def __post_init__(self) -> None:
        check_num_layers(self.num_layers)
        for name in (
            "hidden_size", "num_heads", "intermediate_size", "vocab_size", "num_positions", "max_position",
            "trained_length",            "num_token_types",
        ):  # fmt: skip
            check_size(name, getattr(self, name))
        if self.hidden_size % self.num_heads:
            raise ModelFileError(
                f"the model's description is wrong: a hidden size of {self.hidden_size} is not {self.num_heads} equal heads"
            )
        if self.first_position + self.max_position > self.num_positions:
            raise ModelFileError(
                f"the model's description is wrong: texts of {self.max_position} tokens from position"
                f" {self.first_position} on do not fit in {self.num_positions} positions"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def vector_size(self) -> int:
        """Elements that come of a text."""
        return self.num_labels or self.hidden_size
