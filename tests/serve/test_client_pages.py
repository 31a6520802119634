"""The programs in docs/clients do what the pages say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_programs import run_page
from server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its model has a name without a slash, as the pages' has, and a home of its own to make models in."""
    home = {"TRIVIUM_HOME": str(tmp_path_factory.mktemp("home"))}
    process = ServerProcess(str(tiny_model), "--served-model-name", "tiny", "--seed", "1", environment=home)
    yield process
    assert process.stop() == 0


@pytest.mark.parametrize("page", ["openai", "anthropic", "ollama"])
def test_the_program_of_a_page_runs(server: ServerProcess, page: str) -> None:
    assert run_page(page, server.url, "tiny")


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_gets_its_answers(server: ServerProcess) -> None:
    said = run_page("curl", server.url, "tiny")
    assert "error" not in said and "data: [DONE]" in said and '"object":"file"' in said
