import os
from collections.abc import Iterator

import pytest
import torch
from torch import Generator


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """New tensors are full of NaN, so that an element that a kernel does not write is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def random() -> Generator:
    """Fresh inputs at each run; a failure prints the seed."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    return Generator().manual_seed(seed)
