"""Every native op on every instruction set of this machine, against the torch reference."""

import copy
import os
import threading
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import pytest
import torch
from native_paths import INSTRUCTION_SETS, every_path, ops_of
from torch import Generator, Tensor

from trivium.kernels import experts, linear, rms_norm
from trivium.kernels.cases import error, normal, quantized
from trivium.kernels.native import NativeKernels
from trivium.kernels.ops import OP_NAMES
from trivium.kernels.select import native_ops
from trivium.types.errors import ConfigError


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    if is_dataclass(value):
        return tensors_in([getattr(value, field.name) for field in fields(value)])
    return []


def same_numbers(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


# Layers on packed weights round their inputs: test_packed_linear.py, test_float_linear.py, test_experts.py.
EXACT_OPS = [op for op in OP_NAMES if op not in ("linear", "experts")]


@every_path
@pytest.mark.parametrize("op", EXACT_OPS)
def test_native_agrees_with_the_reference_on_every_case(op: str, instruction_set: str, random: Generator) -> None:
    module, native = import_module(f"trivium.kernels.{op}"), getattr(ops_of(instruction_set), op)
    for case in module.cases(random):
        arguments = copy.deepcopy(case.arguments)
        want, got = module.reference(*case.arguments), native(*arguments)
        for want_tensor, got_tensor in zip(tensors_in(want), tensors_in(got), strict=True):
            assert got_tensor.shape == want_tensor.shape and got_tensor.dtype == want_tensor.dtype, case.name
            assert error(got_tensor, want_tensor) <= (case.tolerance or module.TOLERANCE), case.name
        # What it was given is as the reference left it: caches written alike, all else untouched.
        for left_by_reference, left_by_native in zip(tensors_in(case.arguments), tensors_in(arguments), strict=True):
            assert same_numbers(left_by_reference, left_by_native), case.name
    assert not ops_of(instruction_set).fallbacks


@every_path
def test_native_ops_say_which_instruction_set_and_how_many_threads_run(instruction_set: str) -> None:
    ops = native_ops(instruction_set, 3)
    assert {provider.name for provider in ops.providers.values()} == {f"native {instruction_set}"}
    assert all("3 threads" in provider.reason for provider in ops.providers.values())
    assert set(ops.providers) == set(OP_NAMES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_of_another_dtype_run_on_the_reference_and_are_counted(
    random: Generator, dtype: torch.dtype
) -> None:
    ops = native_ops(num_threads=1)
    x, weight, name = normal(random, 3, 64, dtype=dtype), normal(random, 64), str(dtype).removeprefix("torch.")
    for calls in (1, 2):
        assert torch.equal(ops.rms_norm(x, weight, 1e-6), rms_norm.reference(x, weight, 1e-6))
        assert ops.fallbacks == {f"rms_norm: {name} activations": calls}
    ops.gated(x, x, "silu")
    assert ops.fallbacks[f"gated: {name} activations"] == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_on_packed_weights_take_and_give_any_dtype(random: Generator, dtype: torch.dtype) -> None:
    ops = native_ops(num_threads=1)
    x, weight = normal(random, 3, 64, dtype=dtype), ops.prepare(quantized(random, "Q8_0", 16, 64))
    assert torch.equal(ops.linear(x, weight, None), ops.linear(x.float(), weight, None).to(dtype))
    assert not ops.fallbacks


def test_weights_that_were_not_prepared_run_on_the_reference_and_are_counted(random: Generator) -> None:
    ops = native_ops(num_threads=1)
    x, weight = normal(random, 3, 64), quantized(random, "Q8_0", 16, 64)
    assert torch.equal(ops.linear(x, weight, None), linear.reference(x, weight, None))
    assert ops.fallbacks == {"linear: a weight that was not prepared": 1}
    gate, down = normal(random, 2, 8, 64), normal(random, 2, 64, 8)
    arguments = (x, torch.tensor([[0], [1], [1]]), torch.ones(3, 1), gate, gate, down, "silu")
    assert torch.equal(ops.experts(*arguments), experts.reference(*arguments))  # type: ignore[arg-type]
    assert ops.fallbacks["experts: weights that were not prepared"] == 1


@every_path
def test_biases_and_norm_weights_may_be_of_any_dtype(random: Generator, instruction_set: str) -> None:
    ops = ops_of(instruction_set)
    x, weight, bias = normal(random, 2, 64), ops.prepare(normal(random, 8, 64)), normal(random, 8).bfloat16()
    assert torch.equal(ops.linear(x, weight, bias), ops.linear(x, weight, bias.float()))


@every_path
def test_bf16_caches_round_to_nearest_even_as_torch_does(instruction_set: str) -> None:
    tricky = torch.tensor([0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan"), 3.4e38, 1e-45])
    halfway = (torch.arange(0x3F800000, 0x3F800000 + 64 * 0x4000, 0x4000, dtype=torch.int32)).view(torch.float32)
    k = torch.cat([tricky, halfway])[None, None]
    cache = torch.zeros(2, 1, 2, 1, k.shape[-1], dtype=torch.bfloat16)
    ops_of(instruction_set).write_kv(k, -k, cache[0], cache[1], torch.tensor([1]))
    assert same_numbers(cache[0, 0, 1, 0], k[0, 0].bfloat16())
    assert same_numbers(cache[1, 0, 1, 0], (-k)[0, 0].bfloat16())


@every_path
def test_a_result_that_is_not_a_number_is_told(random: Generator, instruction_set: str) -> None:
    ops = ops_of(instruction_set)
    x = normal(random, 2, 64)
    x[0, 13] = float("nan")
    for y in (
        ops.linear(x, ops.prepare(quantized(random, "Q4_1", 5, 64)), None),
        ops.rms_norm(x, torch.ones(64), 1e-6),
        ops.gated(x, torch.ones(2, 64), "silu")[:, 13:14],
        ops.gated(x, torch.ones(2, 64), "gelu_tanh")[:, 13:14],
    ):
        assert y[0].isnan().all() and y[1].isfinite().all()


def test_an_instruction_set_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no such instruction set: abacus"):
        NativeKernels("abacus", 1)


@every_path
def test_calls_from_several_threads_do_not_disturb_each_other(random: Generator, instruction_set: str) -> None:
    ops = ops_of(instruction_set)
    weight = ops.prepare(quantized(random, "Q4_1", 300, 67 * 32))
    inputs = [normal(random, rows, 67 * 32) for rows in (1, 2, 5, 66)]
    wanted = [ops.linear(x, weight, None) for x in inputs]
    right: list[bool] = []

    def work(x: Tensor, want: Tensor) -> None:
        right.extend(torch.equal(ops.linear(x, weight, None), want) for _ in range(10))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 40


def test_more_threads_than_cores_or_work_change_nothing(random: Generator) -> None:
    x, crowd = normal(random, 3, 96), native_ops(num_threads=2 * (os.cpu_count() or 1) + 5)
    weight = crowd.prepare(quantized(random, "Q8_0", 200, 96))
    want = native_ops(num_threads=1).linear(x, weight, None)
    for _ in range(20):
        assert torch.equal(crowd.linear(x, weight, None), want)
    assert torch.equal(crowd.linear(x[:1], weight, None), want[:1])


def test_the_child_of_a_fork_computes_alone_and_ends(random: Generator) -> None:
    ops = native_ops(num_threads=3)
    x, weight = normal(random, 3, 96), ops.prepare(quantized(random, "Q8_0", 200, 96))
    want = ops.linear(x, weight, None)
    child = os.fork()
    if child == 0:
        right = torch.equal(ops.linear(x, weight, None), want)
        del ops  # joins no thread: they stayed with the parent
        os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(ops.linear(x, weight, None), want)


def test_the_trial_of_instruction_sets_found_at_least_the_baseline() -> None:
    assert INSTRUCTION_SETS[0] == "baseline"
