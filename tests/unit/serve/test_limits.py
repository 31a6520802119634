from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from trivium.serve.limits import Limits, changed
from trivium.types.errors import ConfigError

DOCUMENT = Path(__file__).parents[3] / "docs" / "operations.md"


def test_the_document_names_every_limit_with_its_value() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", DOCUMENT.read_text().partition("## Limits")[2], re.MULTILINE)
    limits = msgspec.structs.asdict(Limits())
    assert {name: value.strip() for name, value in rows} == {name: f"{value:,}" for name, value in limits.items()}


def test_a_limit_is_changed_by_name() -> None:
    limits = changed(Limits(), ["body_bytes=10", "body_seconds=0.5"])
    assert limits == Limits(body_bytes=10, body_seconds=0.5)


@pytest.mark.parametrize(
    "change",
    ["body=1", "body_bytes", "body_bytes=x", "body_bytes=0", "body_bytes=1.5", "body_seconds=nan", "body_seconds=inf"],
)
def test_what_is_no_limit_is_refused(change: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(change.partition("=")[0])):
        changed(Limits(), [change])
