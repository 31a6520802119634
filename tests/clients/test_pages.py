"""The programs in docs/clients that need another environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_programs import run_page
from server_process import ServerProcess


@pytest.mark.parametrize(
    "page", ["litellm", "langchain", "llama-index", "instructor", "pydantic-ai", "openai-agents", "llm"]
)
def test_the_program_of_a_page_runs(
    server: ServerProcess, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    assert run_page(page, server.url, "tiny")
