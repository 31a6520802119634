from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from walker import Walker, save_tokenizer


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def walker(tokenizer_directory: Path) -> Iterator[Walker]:
    walker = Walker(tokenizer_directory)
    yield walker
    walker.service.close()
