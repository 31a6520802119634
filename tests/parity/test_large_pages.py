"""Packed weights lie one after another, on large pages where the system has them."""

from pathlib import Path

import pytest
import torch

from trivium.kernels import large_pages
from trivium.kernels.large_pages import ALIGNMENT, CHUNK_BYTES, PAGE_BYTES, LargePages

needs_offer = pytest.mark.skipif(not large_pages.are_offered(), reason="the system gives no large pages")


@needs_offer
def test_weights_follow_each_other_from_the_beginning_of_a_large_page_on() -> None:
    memory = LargePages()
    first, second, third = memory.empty((3, 7)), memory.empty((5,)), memory.empty((2, 64))
    assert first.shape == (3, 7) and first.dtype == torch.uint8
    assert first.data_ptr() % PAGE_BYTES == 0
    assert second.data_ptr() == first.data_ptr() + ALIGNMENT and third.data_ptr() == second.data_ptr() + ALIGNMENT


@needs_offer
def test_a_weight_larger_than_a_chunk_has_one_of_its_own() -> None:
    memory = LargePages()
    memory.empty((5,))
    large = memory.empty((CHUNK_BYTES + 1,))
    assert len(large) == CHUNK_BYTES + 1 and large.data_ptr() % PAGE_BYTES == 0
    large[-1] = 7
    assert large[-1] == 7


@needs_offer
def test_what_is_held_is_a_copy_that_outlives_its_source_and_its_memory() -> None:
    memory = LargePages()
    mapped = torch.arange(100, dtype=torch.uint8).view(4, 25)
    held = memory.hold(mapped)
    del memory
    mapped.zero_()
    assert held.shape == (4, 25) and torch.equal(held.flatten(), torch.arange(100, dtype=torch.uint8))


@pytest.mark.parametrize("setting", ["always madvise [never]\n", None])
def test_where_there_are_no_large_pages_nothing_is_copied(
    setting: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_pages, "SETTING", tmp_path / "enabled")
    if setting is not None:
        (tmp_path / "enabled").write_text(setting)
    memory = LargePages()
    mapped = torch.arange(10, dtype=torch.uint8)
    assert not memory.are_offered and memory.hold(mapped) is mapped
    assert memory.empty((2, 3)).shape == (2, 3)
