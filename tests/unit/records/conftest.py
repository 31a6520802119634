from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trivium.records.records import Records


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    records = Records.open(tmp_path / "state", max_file_bytes=1000)
    yield records
    records.close()
