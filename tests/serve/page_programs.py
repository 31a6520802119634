"""The programs on the pages of docs/clients, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "clients"


def run_page(page: str, url: str, model: str, question: tuple[str, str] = ("", ""), cwd: Path | None = None) -> str:
    """What the page's program prints, with the server's address and model put in, and another `question` than the page's.

    It must end well.
    """
    language, program = re.findall(r"```(python|sh)\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)[0]
    program = program.replace("http://127.0.0.1:8000", url).replace("smollm2", model)
    if question[0]:
        assert question[0] in program
        program = program.replace(*question)
    command = [sys.executable, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
    ran = subprocess.run(
        [*command, program], capture_output=True, text=True, timeout=240, cwd=cwd, stdin=subprocess.DEVNULL
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout
