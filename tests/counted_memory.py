"""The memory of tensors as torch's allocator tells it: exact, where what the system counts depends on what came before."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def most_allocated(work: Callable[[], object]) -> int:
    """By `work`, at once, as torch's allocator tells the profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events = profiled.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = most = 0
    for _, nbytes in changes:
        held += nbytes
        most = max(most, held)
    return most
