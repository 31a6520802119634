"""Graph mode of the native kernels: a decoder's ops are recorded once, then replayed without Python in between.

    program = record(steps, num_rotations, num_groups, native)   # `steps` is the code that runs eagerly
    hidden = program.run(tokens, rotations, attention)

A value stands for a tensor [T, …] of a step with any number of tokens T. Code that asks such a value for something that
has no native op is not recorded, with the reason; it runs eagerly.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from trivium.kernels.attention import AttentionBatch
from trivium.kernels.gated import Activation
from trivium.kernels.kv_layout import LaneLayout
from trivium.kernels.native import TYPES_OF_FLOATS, NativeKernels, expert_parts, load_extension
from trivium.kernels.ops import NotRecordable, Ops
from trivium.kernels.weights import LinearWeight, PackedTensor, QuantizedTensor, Weight


def record(
    steps: Callable[[Any, Any, Any, Any], Any], num_rotations: int, num_groups: int, native: NativeKernels
) -> NativeProgram:
    recording = Recording()
    rotations = [RotationInput(index) for index in range(num_rotations)]
    groups = [GroupInput(index) for index in range(num_groups)]
    result = steps(recording.ops(), None, rotations, groups)
    return recording.compile(result, native)


def tokens_together(native: NativeKernels, packed_types: Iterable[str]) -> int:
    """At most, between two calls of attention: program.cpp gives each thread parts of about 64, or all about 128; and all 512
    where weights are expanded for them."""
    if any(native.kernels.expands(type) for type in packed_types):
        return 520
    return max(136, 72 * native.num_threads)


@dataclass(frozen=True, eq=False)
class Value:
    """A float32 tensor [T, *shape] of a step. Values that are views of one another share an id."""

    recording: Recording
    id: int
    shape_of_token: tuple[int, ...]

    @property
    def width(self) -> int:
        return prod(self.shape_of_token)

    def __len__(self) -> int:
        return 1  # stands for T; `view` takes it back

    def view(self, rows: int, *shape: int) -> Value:
        rest = self.width // -prod(shape) if -1 in shape else 0
        return Value(self.recording, self.id, tuple(rest if size == -1 else size for size in shape))

    def flatten(self, start: int) -> Value:
        assert start == 1
        return Value(self.recording, self.id, (self.width,))

    def __add__(self, other: Value) -> Value:
        out = self.recording.value(self.shape_of_token)
        self.recording.note("add", (self, other), (out,))
        return out

    def __mul__(self, factor: float) -> Value:
        out = self.recording.value(self.shape_of_token)
        self.recording.note("scale", (self,), (out,), factor)
        return out

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], *_: object) -> NoReturn:
        raise NotRecordable(f"no native op for {function.__name__} of a step's values")

    def __getattr__(self, name: str) -> NoReturn:
        raise NotRecordable(f"no native op for {name} of a step's values")


@dataclass(frozen=True)
class RotationInput:
    """Which of the step's rotations; its `cos` and `sin` are both of them."""

    index: int

    @property
    def cos(self) -> RotationInput:
        return self

    @property
    def sin(self) -> RotationInput:
        return self


@dataclass(frozen=True)
class GroupInput:
    """Which of the step's KV groups; its `slots` are the group's."""

    index: int

    @property
    def slots(self) -> GroupInput:
        return self


@dataclass(frozen=True)
class PackedLayer:
    weight: PackedTensor
    bias: Tensor | None
    held: Literal["nothing", "summand"] | Activation = "nothing"  # at its outputs before; an activation: gates


@dataclass(frozen=True)
class NotedOp:
    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    arguments: tuple[Any, ...]
    updates: Value | None = None  # the input that the output takes the place of


@dataclass
class Recording:
    noted: list[NotedOp] = field(default_factory=list)
    num_values: int = 0

    def value(self, shape: tuple[int, ...]) -> Value:
        self.num_values += 1
        return Value(self, self.num_values - 1, shape)

    def note(self, name: str, inputs: tuple[Value, ...], outputs: tuple[Value, ...], *arguments: Any) -> None:
        self.noted.append(NotedOp(name, inputs, outputs, arguments))

    def ops(self) -> Ops:
        return Ops(
            prepare=lambda weight: weight,
            linear=self._linear,  # type: ignore[arg-type]
            embed=self._embed,  # type: ignore[arg-type]
            rms_norm=self._rms_norm,  # type: ignore[arg-type]
            rotary=self._rotary,  # type: ignore[arg-type]
            gated=self._gated,  # type: ignore[arg-type]
            write_kv=self._write_kv,  # type: ignore[arg-type]
            paged_attention=self._paged_attention,  # type: ignore[arg-type]
            route=self._route,  # type: ignore[arg-type]
            experts=self._experts,  # type: ignore[arg-type]
            layer_norm=self._of_encoders,
            activate=self._of_encoders,
            text_attention=self._of_encoders,
            kv_layout=LaneLayout(),
            sample=self._after,
            logprobs=self._after,
            record=None,
            has_own_threads=True,
            packing=None,
            takes_stored_floats=True,
            providers={},
            fallbacks=Counter(),
        )

    def _embed(self, ids: object, weight: Weight, dtype: torch.dtype) -> Value:
        if dtype != torch.float32:
            raise NotRecordable(f"activations are {dtype}, and native ops take float32".replace("torch.", ""))
        out = self.value((weight.shape[1],))
        self.note("embed", (), (out,), *_parts(weight))
        return out

    def _linear(self, x: Value, weight: LinearWeight, bias: Tensor | None) -> Value:
        out = self.value((weight.shape[0],))
        assert isinstance(weight, PackedTensor)
        self.note("packed_linears", (x,), (out,), PackedLayer(weight, None if bias is None else bias.float()))
        return out

    def _rms_norm(self, x: Value, weight: Tensor, eps: float) -> Value:
        out = self.value(x.shape_of_token)
        self.note("rms_norm", (x,), (out,), weight, eps)
        return out

    def _rotary(self, q: Value, k: Value, cos: RotationInput, sin: RotationInput) -> tuple[Value, Value]:
        q_out, k_out = self.value(q.shape_of_token), self.value(k.shape_of_token)
        self.note("rotary", (q, k), (q_out, k_out), q.shape_of_token[-1], cos.index)
        return q_out, k_out

    def _gated(self, gate: Value, up: Value, activation: Activation) -> Value:
        out = self.value(gate.shape_of_token)
        self.note("gated", (gate, up), (out,), activation)
        return out

    def _write_kv(self, k: Value, v: Value, key_cache: Tensor, value_cache: Tensor, slots: GroupInput) -> None:
        self.note("write_kv", (k, v), (), key_cache, value_cache, slots.index)

    def _paged_attention(
        self,
        q: Value,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: GroupInput,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Value:
        out = self.value(q.shape_of_token)
        self.note("paged_attention", (q,), (out,), key_cache, value_cache, batch.index, scale, window, softcap)
        return out

    def _route(self, logits: Value, top_k: int, normalized: bool) -> tuple[Value, Value]:
        """One value stands for both results: ids of 8 bytes and shares of 4, of each choice."""
        out = self.value((3 * top_k,))
        self.note("route", (logits,), (out,), top_k, normalized)
        return out, out

    def _experts(
        self,
        x: Value,
        ids: Value,
        shares: Value,
        gate: LinearWeight,
        up: LinearWeight,
        down: LinearWeight,
        activation: Activation,
    ) -> Value:
        assert ids is shares, "both come from `route`"
        assert isinstance(gate, PackedTensor) and isinstance(up, PackedTensor) and isinstance(down, PackedTensor)
        out = self.value(x.shape_of_token)
        self.note("experts", (x, ids), (out,), *expert_parts(gate, up, down), activation)
        return out

    def _after(self, *_: object) -> NoReturn:
        raise NotRecordable("what is done with logits comes after the recorded ops")

    def _of_encoders(self, *_: object) -> NoReturn:
        raise NotRecordable("encoders run op by op")

    def compile(self, result: Value, native: NativeKernels) -> NativeProgram:
        noted = _together(_into_residuals(self.noted, result))
        noted = _with_norms(_into_gates(noted, result), result)
        buffer_of, widths = _share_buffers(noted, result)
        program = load_extension().Program(native.kernels, widths)
        for op in noted:
            inputs = [buffer_of[value.id] for value in op.inputs]
            outputs = [buffer_of[value.id] for value in op.outputs]
            _EMIT[op.name](program, inputs, outputs, op.arguments)
        return NativeProgram(program, buffer_of[result.id], widths[buffer_of[result.id]], self)


class NativeProgram:
    def __init__(self, program: Any, result: int, width: int, recording: Recording) -> None:
        self._program = program
        self._result = result
        self._width = width
        self._recording = recording  # holds the weights and caches that the program points into

    @property
    def num_ops(self) -> int:
        return int(self._program.num_ops)

    def run(
        self,
        tokens: Tensor,
        rotations: Sequence[tuple[Tensor, Tensor]],
        attention: Sequence[AttentionBatch],
        wanted: Tensor | None = None,
    ) -> Tensor:
        out = torch.empty((len(tokens if wanted is None else wanted), self._width), dtype=torch.float32)
        groups = [(batch.query_starts, batch.context_lens, batch.block_table, batch.slots) for batch in attention]
        self._program.run(tokens, [tuple(rotation) for rotation in rotations], groups, wanted, self._result, out)
        return out


def _last_uses(noted: Sequence[NotedOp], result: Value) -> dict[int, int]:
    """By value: the index of the last op that has to do with it."""
    last_use = {value.id: index for index, op in enumerate(noted) for value in (*op.inputs, *op.outputs)}
    last_use[result.id] = len(noted)
    return last_use


Join = Callable[[NotedOp, NotedOp, int], NotedOp | None]


def _joined(noted: Sequence[NotedOp], join: Join) -> list[NotedOp]:
    """`join` of an op's predecessor, the op and its index: the op that takes the place of both, or None."""
    ops: list[NotedOp] = []
    for index, op in enumerate(noted):
        both = join(ops[-1], op, index) if ops else None
        if both is None:
            ops.append(op)
        else:
            ops[-1] = both
    return ops


def _into_residuals(noted: Sequence[NotedOp], result: Value) -> list[NotedOp]:
    """A packed layer whose output is only added to a value that is not needed after adds to it itself."""
    last_use = _last_uses(noted, result)

    def join(before: NotedOp, op: NotedOp, index: int) -> NotedOp | None:
        if (before.name, op.name) != ("packed_linears", "add") or before.outputs[0].id != op.inputs[1].id:
            return None
        if any(last_use[value.id] != index for value in op.inputs):
            return None
        (layer,) = before.arguments
        residual = op.inputs[0]
        layers = (replace(layer, held="summand"),)
        return NotedOp("packed_linears", (*before.inputs, residual), op.outputs, layers, updates=residual)

    return _joined(noted, join)


def _together(noted: Sequence[NotedOp]) -> list[NotedOp]:
    """Neighbouring packed layers of one input become one op: the input is quantized once, threads meet once."""

    def join(before: NotedOp, op: NotedOp, _: int) -> NotedOp | None:
        if not before.name == op.name == "packed_linears" or before.inputs[0].id != op.inputs[0].id:
            return None
        if before.updates is not None or op.updates is not None:
            return None
        outputs, layers = (*before.outputs, *op.outputs), (*before.arguments, *op.arguments)
        return NotedOp("packed_linears", before.inputs, outputs, layers)

    return _joined(noted, join)


def _into_gates(noted: Sequence[NotedOp], result: Value) -> list[NotedOp]:
    """Two layers of one input whose outputs are only gate and gated: the second multiplies by the first's activation where
    the first's outputs lie, so that neither is read and written once more. Not where weights are floats: such layers take
    numbers too small to be normal for 0, as tiles do, and a gate does not."""
    last_use = _last_uses(noted, result)

    def join(before: NotedOp, op: NotedOp, index: int) -> NotedOp | None:
        if (before.name, op.name) != ("packed_linears", "gated"):
            return None
        if [value.id for value in before.outputs] != [value.id for value in op.inputs]:
            return None
        if any(last_use[value.id] != index for value in op.inputs):
            return None
        if any(layer.weight.type in TYPES_OF_FLOATS for layer in before.arguments):
            return None
        gate, up = before.arguments
        (activation,) = op.arguments
        layers = (gate, replace(up, held=activation))
        return NotedOp("packed_linears", before.inputs, (*op.outputs, *op.outputs), layers)

    return _joined(noted, join)


def _with_norms(noted: Sequence[NotedOp], result: Value) -> list[NotedOp]:
    """Layers whose input is a norm of whole rows that nothing else needs norm each row as they quantize it."""
    last_use = _last_uses(noted, result)

    def join(before: NotedOp, op: NotedOp, index: int) -> NotedOp | None:
        if (before.name, op.name) != ("rms_norm", "packed_linears") or before.outputs[0].id != op.inputs[0].id:
            return None
        if last_use[op.inputs[0].id] != index or op.updates is not None:
            return None
        if before.arguments[0].shape[0] != op.inputs[0].width:
            return None
        return NotedOp("normed_linears", before.inputs, op.outputs, (*before.arguments, *op.arguments))

    return _joined(noted, join)


def _share_buffers(noted: Sequence[NotedOp], result: Value) -> tuple[dict[int, int], list[int]]:
    """(buffer of each value, width of each buffer): a buffer is free again after its value's last use.

    An op's outputs never share a buffer with its inputs, which it may still be reading, but for the one it updates.
    """
    last_use = _last_uses(noted, result)
    buffer_of: dict[int, int] = {}
    widths: list[int] = []
    free: defaultdict[int, list[int]] = defaultdict(list)  # by width
    for index, op in enumerate(noted):
        for value in {value.id: value for value in op.outputs}.values():
            if op.updates is not None:
                buffer_of[value.id] = buffer_of[op.updates.id]
            elif free[value.width]:
                buffer_of[value.id] = free[value.width].pop()
            else:
                buffer_of[value.id] = len(widths)
                widths.append(value.width)
        for value in {value.id: value for value in (*op.inputs, *op.outputs)}.values():
            if last_use[value.id] == index and value is not op.updates:
                free[value.width].append(buffer_of[value.id])
    return buffer_of, widths


def _parts(weight: Weight) -> tuple[Tensor, str | None]:
    return (weight.data, weight.type) if isinstance(weight, QuantizedTensor) else (weight, None)


def _layers(layers: Sequence[PackedLayer], outputs: Sequence[int]) -> list[tuple[Any, ...]]:
    return [(x.weight.data, x.weight.type, x.bias, out, x.held) for x, out in zip(layers, outputs, strict=True)]


Emit = Callable[[Any, list[int], list[int], tuple[Any, ...]], None]
_EMIT: dict[str, Emit] = {
    "embed": lambda program, i, o, a: program.embed(*a, o[0]),
    "scale": lambda program, i, o, a: program.scale(i[0], a[0], o[0]),
    "rms_norm": lambda program, i, o, a: program.rms_norm(i[0], *a, o[0]),
    "packed_linears": lambda program, i, o, a: program.packed_linears(i[0], None, 0.0, _layers(a, o)),
    "normed_linears": lambda program, i, o, a: program.packed_linears(i[0], a[0], a[1], _layers(a[2:], o)),
    "rotary": lambda program, i, o, a: program.rotary(*i, *a, *o),
    "write_kv": lambda program, i, o, a: program.write_kv(*i, *a),
    "paged_attention": lambda program, i, o, a: program.paged_attention(i[0], *a, o[0]),
    "route": lambda program, i, o, a: program.route(i[0], *a, o[0]),
    "experts": lambda program, i, o, a: program.experts(*i, *a, o[0]),
    "gated": lambda program, i, o, a: program.gated(*i, a[0], o[0]),
    "add": lambda program, i, o, a: program.add(*i, o[0]),
}
