from collections.abc import Iterator

import pytest
import torch
from drawn_seed import drawn_seed
from torch import Generator


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """New tensors are full of NaN, so that an element that a kernel does not write is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def random(request: pytest.FixtureRequest) -> Generator:
    """Other inputs for each test."""
    return Generator().manual_seed(drawn_seed(request.node.nodeid))
