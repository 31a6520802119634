"""The facts of a decoder, read once from config.json or GGUF metadata. Numbers and names only."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from trivium.types.errors import ModelFileError
from trivium.types.kv import KVSpec, group_layers

Activation = Literal["silu", "gelu_tanh"]

MAX_LAYERS = 1 << 12
MAX_SIZE = 1 << 24  # of any one dimension, and of the context; larger numbers are damage, and would fill the memory


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ModelFileError(f"the model's description is wrong: {otherwise}")


def check_num_layers(num_layers: int) -> int:
    """For readers, before they build anything that has an entry per layer."""
    _check(0 < num_layers <= MAX_LAYERS, f"{num_layers} layers are not in 1 … {MAX_LAYERS}")
    return num_layers


def check_size(name: str, size: int) -> int:
    """For readers, before they compute with it."""
    _check(0 < size <= MAX_SIZE, f"{name} {size} is not in 1 … {MAX_SIZE}")
    return size


class LinearScaling(Struct, frozen=True, tag="linear"):
    """All frequencies divided by one factor."""

    factor: float


class DynamicScaling(Struct, frozen=True, tag="dynamic"):
    """NTK: the base grows with the length of the sequence once that exceeds `original_max_position`."""

    factor: float
    original_max_position: int


class YarnScaling(Struct, frozen=True, tag="yarn"):
    """Slow frequencies interpolated, fast ones kept, a ramp between; cos and sin scaled by `attention_factor`."""

    factor: float
    original_max_position: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the ramp's ends rounded outwards to whole dimensions


class Llama3Scaling(Struct, frozen=True, tag="llama3"):
    """Wavelengths above original_max_position / low_freq_factor stretched, with a smooth step to those kept."""

    factor: float
    original_max_position: int
    low_freq_factor: float
    high_freq_factor: float


class LongropeScaling(Struct, frozen=True, tag="longrope"):
    """A divisor per frequency: one set for sequences up to `original_max_position` tokens, one for longer ones."""

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_position: int
    attention_factor: float


RopeScaling = LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling | LongropeScaling


class RopeSpec(Struct, frozen=True):
    theta: float
    dim: int  # elements of each head that turn; the others pass
    scaling: RopeScaling | None = None
    frequency_factors: tuple[float, ...] = ()  # divisors of the frequencies, as GGUF's rope_freqs.weight; () is all 1

    @property
    def fixed_up_to(self) -> int | None:
        """Sequences up to this length share their frequencies; longer ones each have their own. None: all share."""
        if isinstance(self.scaling, DynamicScaling | LongropeScaling):
            return self.scaling.original_max_position
        return None

    def __post_init__(self) -> None:
        _check(self.theta > 1, f"rope theta is {self.theta}, and must be above 1")
        _check(self.dim > 0 and self.dim % 2 == 0, f"{self.dim} rotary elements are not pairs")
        scaling = self.scaling
        if scaling is not None and not isinstance(scaling, LongropeScaling):
            _check(scaling.factor > 0, f"rope scaling factor is {scaling.factor}, and must be above 0")
        if scaling is not None and not isinstance(scaling, LinearScaling):
            check_size("original context", scaling.original_max_position)
        if isinstance(scaling, DynamicScaling):
            _check(self.dim > 2, "dynamic rope scaling needs more than one pair of rotary elements")
        if isinstance(scaling, YarnScaling):
            _check(min(scaling.beta_fast, scaling.beta_slow) > 0, "yarn's beta_fast and beta_slow must be above 0")
        if isinstance(scaling, Llama3Scaling):
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            _check(0 < low < high, f"rope factors of low and high frequencies, {low} and {high}, are not in order")
        divisors = [self.frequency_factors] if self.frequency_factors else []
        if isinstance(scaling, LongropeScaling):
            divisors = [scaling.short_factors, scaling.long_factors]
        for factors in divisors:
            _check(len(factors) == self.dim // 2, f"{len(factors)} rope factors for {self.dim // 2} frequencies")


class AttentionSpec(Struct, frozen=True):
    scale: float  # of the scores
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False  # an RMS norm over each head of the queries and of the keys, before they turn
    softcap: float | None = None


class NormSpec(Struct, frozen=True):
    eps: float
    offset: float = 0.0  # added to the norm weights of the checkpoint; Gemma's on the hub are stored less 1
    sandwich: bool = False  # attention and feed-forward results are normed too, before they join the residual


class MoeSpec(Struct, frozen=True):
    num_experts: int
    top_k: int
    intermediate_size: int  # of one expert
    norm_topk_prob: bool  # the weights of the chosen experts sum to 1
    sparse_layers: tuple[int, ...]  # the others are dense

    def __post_init__(self) -> None:
        check_size("number of experts", self.num_experts)
        check_size("size of an expert", self.intermediate_size)
        _check(0 < self.top_k <= self.num_experts, f"{self.top_k} of {self.num_experts} experts cannot be chosen")


class ModelSpec(Struct, frozen=True, kw_only=True):
    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int  # of the dense layers
    vocab_size: int  # rows of the embedding
    max_position: int  # tokens of context that the model was made for
    dtype: str  # of the checkpoint's float weights; "float32" where the weights are quantized
    quantization: str | None = None  # the GGUF type of most weights, where they are quantized
    activation: Activation = "silu"
    windows: tuple[int | None, ...]  # per layer: a query sees this many keys, itself included; None sees all
    attention: AttentionSpec
    norm: NormSpec
    rope: RopeSpec
    sliding_rope: RopeSpec | None = None  # of layers with a window; None: the same as of the others
    moe: MoeSpec | None = None
    mlp_bias: bool = False
    embedding_scale: float = 1.0
    final_softcap: float | None = None  # of the logits
    tied_embeddings: bool = False  # the embedding is the output projection too
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_num_layers(self.num_layers)
        for name in ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "vocab_size"):
            check_size(name, getattr(self, name))
        check_size("max_position", self.max_position)
        _check(
            self.num_heads % self.num_kv_heads == 0,
            f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key/value heads evenly",
        )
        _check(
            len(self.windows) == self.num_layers,
            f"there are {self.num_layers} layers, but attention windows for {len(self.windows)}",
        )
        for window in self.windows:
            _check(window is None or window > 0, f"an attention window of {window} tokens sees nothing")
        for rope in (self.rope, self.sliding_rope or self.rope):
            _check(rope.dim <= self.head_dim, f"{rope.dim} rotary elements do not fit in heads of {self.head_dim}")

    def rope_of_layer(self, layer: int) -> RopeSpec:
        if self.sliding_rope is not None and self.windows[layer] is not None:
            return self.sliding_rope
        return self.rope

    def is_sparse(self, layer: int) -> bool:
        return self.moe is not None and layer in self.moe.sparse_layers

    @property
    def num_layers_of_all_kinds(self) -> int:
        """So many from the first on use all the kernels that there are to use: layers of every kind, and a last one of the
        last's, of which a step with prompts computes less."""
        kinds = [(self.windows[layer], self.is_sparse(layer)) for layer in range(self.num_layers)]
        for count in range(1, self.num_layers):
            if kinds[count] == kinds[-1] and set(kinds[:count]) == set(kinds):
                return count + 1
        return self.num_layers

    @property
    def activations_per_token(self) -> int:
        """Elements that a step holds at once at most: the residual and its norm, heads, one feed-forward layer, and the
        widest input of a product once more, as the kernels lay it."""
        return self._activations(of_expert=3)

    def _activations(self, of_expert: int) -> int:
        """`of_expert`: how many times a token's part of an expert is held in the expert's own width."""
        heads = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        wide = 3 * self.intermediate_size
        if self.moe is not None:
            # Of each chosen expert: its middle, and its result in the hidden size.
            wide = max(wide, self.moe.top_k * (of_expert * self.moe.intermediate_size + self.hidden_size))
        laid = max(self.hidden_size, self.num_heads * self.head_dim, self.intermediate_size)
        return 4 * self.hidden_size + heads + wide + laid

    def activations_held(self, num_tokens: int, together: int | None) -> int:
        """Elements that a step of so many tokens holds at once at most. `together`: how many tokens are taken at a time between
        two calls of attention; all of them have the residual, their heads and what is mixed. None, or experts: all at once.
        Where tokens are taken so, experts are gated where their gates lie."""
        if together is None:
            return num_tokens * self.activations_per_token
        if self.moe is not None:
            return num_tokens * self._activations(of_expert=2)
        kept = self.hidden_size + 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        return num_tokens * kept + min(num_tokens, together) * self.activations_per_token

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """The key/value cache that this model needs; `dtype` is a torch dtype's name."""
        return KVSpec(
            block_size=block_size,
            groups=group_layers(self.windows),
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
        )
