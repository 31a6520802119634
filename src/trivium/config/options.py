"""The options a user gives. Each has its meaning beside it; command line and keyword arguments are made from here."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

AtLeastOne = Annotated[int, Meta(ge=1)]


class EngineOptions(Struct, frozen=True, kw_only=True):
    """What the user asked for, before the model and the platform had their say. None: the engine chooses and says so."""

    model: Annotated[str, Meta(description="a stored name, a directory with safetensors, or a .gguf file")]
    served_model_name: Annotated[str | None, Meta(description="the name clients use; default: the model's own")] = None
    device: Annotated[str, Meta(description="auto: a GPU where there is one that can be used; cpu; …")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="of activations; quantized weights stay as they are"),
    ] = "auto"
    load_format: Annotated[
        Literal["auto", "dummy"], Meta(description="dummy: random weights from config.json alone, to measure shapes")
    ] = "auto"
    skip_tokenizer_init: Annotated[bool, Meta(description="token ids in and out only")] = False
    max_model_len: Annotated[AtLeastOne | None, Meta(description="longest prompt + answer, tokens")] = None
    block_size: Annotated[int, Meta(description="tokens in one KV block", ge=1, le=1024)] = 16
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"],
        Meta(description="of cached keys and values; auto: what the kernels read fastest; int8: least memory"),
    ] = "auto"
    kv_cache_bytes: Annotated[AtLeastOne | None, Meta(description="memory for the KV cache, bytes")] = None
    gpu_memory_utilization: Annotated[
        float, Meta(description="share of a GPU's memory that the engine may fill, all in all", gt=0, le=1)
    ] = 0.9
    max_num_seqs: Annotated[int, Meta(description="sequences that run at once", ge=1, le=65536)] = 256
    max_num_batched_tokens: Annotated[AtLeastOne | None, Meta(description="tokens computed in one step at most")] = None
    max_chunk_tokens: Annotated[
        AtLeastOne | None, Meta(description="prompt tokens of one sequence in one step at most")
    ] = None
    max_background_tokens: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="tokens of background requests (batches) in a step beside others, 0 pauses them;"
            " default: 1 on a CPU, 32 on an accelerator"
        ),
    ] = None
    max_waiting: Annotated[
        int, Meta(description="sequences that may wait for a row before new requests are refused", ge=0)
    ] = 4096
    max_first_token_seconds: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="requests whose first token must be expected later are refused at once, with the time to come back;"
            " default: they wait"
        ),
    ] = None
    enable_prefix_caching: Annotated[bool, Meta(description="reuse the KV blocks of prompts that begin alike")] = True
    overlap: Annotated[
        bool | None,
        Meta(description="plan a step while the one before runs; default: where the device runs by itself"),
    ] = None
    deterministic: Annotated[
        bool,
        Meta(
            description="the same tokens and log probabilities, to the bit, whatever else runs and however the prompt was"
            " computed; on a GPU slower kernels, on a CPU nothing but the promise"
        ),
    ] = False
    kernels: Annotated[
        Literal["auto", "reference", "native", "triton"],
        Meta(description="auto: the fastest on the device; reference: plain torch, the oracle"),
    ] = "auto"
    instruction_set: Annotated[
        str | None,
        Meta(
            description="of the native kernels: baseline, avx2, avx512, avx512_vnni, avx512_bf16 or amx; default: the best that the"
            " machine really runs"
        ),
    ] = None
    weight_form: Annotated[
        Literal["auto", "blocks", "rows", "mixed", "units", "short", "int8"],
        Meta(
            description="of weights in memory, for native kernels. blocks: as they are stored; rows: turned, a byte"
            " each, one scale a row: faster prompts and batches, slower single tokens where that is more bytes; mixed: rows"
            " where that is no more bytes; units: as mixed, and Q4_K, Q5_K and Q6_K rounded to bytes as they are multiplied,"
            " one scale for 256 columns: faster prompts and batches; short: bfloat16 in 12.2 bits, none of which is lost: faster"
            " single tokens; int8: rows, and float weights too, which are rounded for it; auto: short for bfloat16 (with AVX2"
            " or AVX-512; not with AMX); else units with AVX-512 VNNI or AMX, else mixed; or rows where they take at most 256 MiB"
            " and the processor sums products of bytes (AVX-512 VNNI, AMX, NEON)"
        ),
    ] = "auto"
    strict: Annotated[
        str | None,
        Meta(
            description="a rung of kernels (native, an instruction set, reference, …) below which no op may run: the engine"
            " refuses to start, and says why; default: slower kernels run where better ones are wrong, and it is said"
        ),
    ] = None
    shadow_every: Annotated[
        int,
        Meta(
            description="steps after which one is computed on the next slower kernels too, and kernels that differ are left;"
            " 0: never",
            ge=0,
        ),
    ] = 10_000
    packed_cache_bytes: Annotated[
        int, Meta(description="room on disk for weights as the kernels lay them, bytes; 0: none is used", ge=0)
    ] = 64 << 30
    stall_seconds: Annotated[
        float,
        Meta(
            description="an engine whose loop has not turned for so long, or for ten of its longest steps where that is more,"
            " is unhealthy, and its stacks are logged; after five times that it is ended and started again; 0: never",
            ge=0,
        ),
    ] = 60.0
    profile_steps: Annotated[
        int,
        Meta(
            description="of the engine's first steps, so many are traced, into `profiles` beside the models; they run slower",
            ge=0,
        ),
    ] = 0
    accept_adjustments: Annotated[
        bool,
        Meta(description="take what is possible in place of a value that cannot be kept; default: refuse, and say so"),
    ] = False
    log_format: Annotated[
        Literal["text", "json"], Meta(description="of what is said on standard error; json: one object a line")
    ] = "text"
    num_threads: Annotated[AtLeastOne | None, Meta(description="CPU threads; default: what the process may use")] = None
    seed: Annotated[int | None, Meta(description="makes requests without a seed of their own repeatable")] = None
