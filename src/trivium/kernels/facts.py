"""What the core's own kernels answer to the platform contract, told from the table of ops that would run."""

from __future__ import annotations

from collections.abc import Collection

from trivium.formats.quant_types import QUANT_TYPES
from trivium.kernels.kv_layout import LaneLayout
from trivium.kernels.ops import ENCODER_OPS, OP_NAMES, Ops
from trivium.platform.contract import (
    AttentionSupport,
    Determinism,
    GraphSupport,
    KernelFacts,
    KVLayoutForm,
    LadderRung,
    OpSupport,
    QuantizationSupport,
    declared,
    measured,
    probed,
)

REFERENCE = "reference"
DECODER_OPS = frozenset(OP_NAMES) - frozenset(ENCODER_OPS)
FLOATS = ("F32", "F16", "BF16")


def kernel_facts(ops: Ops) -> KernelFacts:
    is_invariant = not DECODER_OPS - ops.invariant
    has_graph = ops.record is not None or ops.capture is not None
    supports = tuple(
        OpSupport(
            op=op,
            implementation=provider.name,
            reason=provider.reason,
            deterministic=True,
            batch_invariant=op in ops.invariant,
            graph_safe=has_graph,
        )
        for op, provider in ops.providers.items()
    )
    return KernelFacts(
        ops=probed(supports, "the table of ops that was chosen"),
        quantization=measured(tuple(_quantization(ops)), "tests/parity"),
        attention=measured(
            AttentionSupport(
                kinds=("grouped heads", "sliding windows"),
                head_sizes="any that are even",
                block_sizes="any from 1 to 1024 tokens",
                kv_dtypes=ops.kv_layout.dtypes("float32", 16, 64),
                resumes_prefixes=True,
            ),
            "tests/parity, tests/golden",
        ),
        kv_layout=declared(
            KVLayoutForm("lanes-2", "words of 4 bytes, lanes together")
            if isinstance(ops.kv_layout, LaneLayout)
            else KVLayoutForm("plain-1", "[heads, tokens, elements] of each block"),
            "kernels/kv_layout.py",
        ),
        graph=declared(_graph(ops), "the table of ops that was chosen"),
        determinism=measured(
            Determinism(
                ("batch", "chunk", "run") if is_invariant else ("run",), "" if is_invariant else "sums by batch"
            ),
            "tests/golden/test_invariance.py",
        ),
        ladder=declared(_ladder(ops), "kernels/select.py"),
    )


def planned_graph(ops: Ops) -> str:
    if ops.capture is not None:
        return "steps of decoding rows captured"
    return "none: these kernels have no graph mode" if ops.record is None else "recorded once, replayed for every step"


def slower_than_could_be(ops: Ops, used: Collection[str], quantization: str | None) -> list[str]:
    """What a plan must say aloud: used ops that the reference runs though nobody asked for it, and expanded weights."""
    said: dict[str, list[str]] = {}
    for op in used:
        provider = ops.providers[op]
        if provider.name == REFERENCE and provider.reason not in ("asked for", "the fastest here"):
            said.setdefault(provider.reason, []).append(op)
    lines = [f"{', '.join(names)}: the reference runs, since {reason}" for reason, names in said.items()]
    if quantization is not None and not any(kind.scheme == quantization and kind.native for kind in _quantization(ops)):
        lines.append(f"linear: weights of type {quantization} are expanded at each use")
    return lines


def _quantization(ops: Ops) -> list[QuantizationSupport]:
    linear = ops.providers["linear"].name
    is_native = ops.packing is not None
    return [
        QuantizationSupport(scheme, linear if is_native else REFERENCE, native=is_native)
        for scheme in QUANT_TYPES
        if scheme not in FLOATS
    ]


def _graph(ops: Ops) -> GraphSupport:
    if ops.capture is not None:
        return GraphSupport(("decode",), "memory of the device", ("prompts", "more rows than were captured"))
    if ops.record is not None:
        return GraphSupport(("full",), "nothing", ("activations that are not float32",))
    return GraphSupport((), "", ("everything",))


def _ladder(ops: Ops) -> tuple[LadderRung, ...]:
    best = ops.providers["linear"].name
    bottom = LadderRung(REFERENCE, "always", "never")
    if best == REFERENCE:
        return (bottom,)
    return (
        LadderRung(
            best, "it loads and a trial of it was right", "it cannot be loaded, or is wrong, crashes, hangs or is slow"
        ),
        bottom,
    )
