"""The programs in docs/clients that need another environment."""

from __future__ import annotations

import pytest
from page_programs import run_page
from server_process import ServerProcess


@pytest.mark.parametrize("page", ["litellm", "langchain", "llama-index"])
def test_the_program_of_a_page_runs(server: ServerProcess, page: str) -> None:
    assert run_page(page, server.url, "tiny")
