"""Facts that decisions are made from: what the model is, and what the platform can do. Numbers, never tensors."""

from __future__ import annotations

from msgspec import Struct


class ModelFacts(Struct, frozen=True):
    windows: tuple[int | None, ...]  # per layer; None is full attention
    num_kv_heads: int
    head_dim: int
    max_position: int  # tokens the model was made for
    checkpoint_dtype: str  # of the weights that are not quantized
    activations_per_token: int = 0  # elements that a step holds at once at most
    vocab_size: int = 0
    weight_bytes: int = 0  # as they are stored, or would be where they are drawn; 0: unknown
    own_weight_bytes: int = 0  # as the kernels lay them, in memory that cannot be dropped and read again


class EncoderFacts(Struct, frozen=True):
    max_position: int  # tokens of the longest text
    trained_length: int  # tokens that texts were cut to in training
    checkpoint_dtype: str


class Capabilities(Struct, frozen=True):
    """What a platform can do here and now, with where each number came from in `sources`."""

    platform: str
    device: str  # a torch device string
    name: str  # for people
    dtypes: tuple[str, ...]  # of activations, preferred first
    memory_bytes: int  # this process may use
    available_bytes: int  # of these, not taken by anyone now
    num_threads: int
    features: tuple[str, ...]
    memory_is_dedicated: bool = False  # to the engine, which may fill it; else it is shared with all of the machine
    runs_by_itself: bool = False  # a step, once launched, goes on while the host does other things
    sources: tuple[tuple[str, str], ...] = ()


class Adjustment(Struct, frozen=True):
    """A value the engine chose or changed, said aloud in the start report."""

    option: str
    value: str
    reason: str
