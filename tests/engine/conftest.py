from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_model import SmallModel, save_small_model

from trivium import LLM


@pytest.fixture(scope="session", autouse=True)
def engine_processes_find_the_test_cores() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        here = str(Path(__file__).parent)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])))
        yield


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def llm(small_model: SmallModel) -> Iterator[LLM]:
    with LLM(
        str(small_model.directory), dtype="float32", kv_cache_dtype="float32", num_threads=1, kv_cache_bytes=32 << 20
    ) as llm:
        yield llm
