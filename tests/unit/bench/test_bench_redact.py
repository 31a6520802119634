"""Keys do not get into what is kept."""

from __future__ import annotations

import pytest

from trivium.bench.redact import SECRET, without_keys


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", "sk-1"],
        ["--api-key=sk-1"],
        ["--api", "sk-1"],
        ["--server-options", "--port 1 --api-key sk-1"],
        ["--server-options", "--limit x=1 --api-key sk-1"],
        ["--a-opt", "--api-key sk-1"],
        ["--b-options=--api-key=sk-1 --port 1"],
    ],
)
def test_keys_are_taken_out_wherever_they_stand(arguments: list[str]) -> None:
    kept = " ".join(without_keys(["bench", *arguments, "--rate", "1"]))
    assert "sk-1" not in kept and SECRET in kept
    assert kept.startswith("bench --") and kept.endswith("--rate 1")


def test_all_else_is_kept() -> None:
    arguments = [
        "serve",
        "--api-key-file",
        "keys.toml",
        "--title",
        "a = b",
        "--server-options",
        "--port 1 --limit 'x=1 2'",
    ]
    assert without_keys(arguments) == arguments
