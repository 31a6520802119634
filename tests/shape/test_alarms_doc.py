"""docs/alarms.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def missing(page: str) -> list[str]:
    found = NAMED.findall(page)
    return [
        f"{file}::{name}"
        for file, name in found
        if not (ROOT / file).exists() or f"def {name}(" not in (ROOT / file).read_text()
    ]


def test_every_alarm_has_a_test_that_breaks_what_it_watches() -> None:
    page = (ROOT / "docs" / "alarms.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| alarm")]
    assert rows and [row for row in rows if not NAMED.search(row)] == []
    assert missing(page) == []


def test_a_test_that_is_gone_is_noticed() -> None:
    assert missing("`tests/shape/test_alarms_doc.py::test_that_never_was`") != []
    assert missing("`tests/shape/test_that_never_was.py::test_x`") != []
