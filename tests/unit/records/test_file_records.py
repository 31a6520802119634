from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path

import pytest

from trivium.records.blobs import ORPHAN_SECONDS
from trivium.records.files import FileRecord
from trivium.records.paging import PageRequest
from trivium.records.records import Records
from trivium.types.errors import InvalidRequestError, StorageError


async def keep(records: Records, data: bytes, seconds: int | None = None) -> FileRecord:
    incoming = records.files.incoming()
    incoming.write(data)
    return await records.files.keep(incoming, "name", "user_data", seconds)


def test_a_file_is_kept_with_its_size_and_checksum(records: Records) -> None:
    async def run() -> None:
        record = await keep(records, b"hello")
        assert await records.files.get(record.id) == record
        assert (record.bytes, record.sha256) == (5, hashlib.sha256(b"hello").hexdigest())
        assert records.files.path(record).read_bytes() == b"hello"

    asyncio.run(run())


def test_a_deleted_file_leaves_nothing_behind(records: Records) -> None:
    async def run() -> None:
        record = await keep(records, b"hello")
        assert await records.files.delete(record.id)
        assert not await records.files.delete(record.id)
        assert await records.files.get(record.id) is None
        assert not records.files.path(record).exists()

    asyncio.run(run())


def test_an_expired_file_is_gone_before_it_is_removed(records: Records) -> None:
    async def run() -> None:
        record = await keep(records, b"old", seconds=0)
        kept = await keep(records, b"new", seconds=1000)
        assert await records.files.get(record.id) is None
        assert [file.id for file in (await records.files.list(PageRequest(10), None)).data] == [kept.id]
        await records.clean_up()
        assert not records.files.path(record).exists()
        assert records.files.path(kept).exists()

    asyncio.run(run())


def test_files_together_are_bounded_and_what_is_refused_leaves_nothing(records: Records, tmp_path: Path) -> None:
    async def run() -> None:
        await keep(records, b"x" * 600)
        with pytest.raises(InvalidRequestError, match=r"1000 bytes together, but with this one of 401 bytes.*1001"):
            await keep(records, b"x" * 401)
        await keep(records, b"x" * 400)

    asyncio.run(run())
    assert len(list((tmp_path / "state/files").iterdir())) == 2


def test_old_remains_of_a_killed_process_are_removed_and_young_ones_are_not(records: Records, tmp_path: Path) -> None:
    old, young = tmp_path / "state/files/file-old", tmp_path / "state/incoming/young"
    old.write_bytes(b"")
    young.write_bytes(b"")
    past = time.time() - ORPHAN_SECONDS - 60
    os.utime(old, (past, past))

    async def run() -> FileRecord:
        record = await keep(records, b"kept")
        os.utime(records.files.path(record), (past, past))
        await records.clean_up()
        return record

    assert records.files.path(asyncio.run(run())).exists()
    assert not old.exists()
    assert young.exists()


def test_pages_follow_each_other_in_both_orders(records: Records) -> None:
    async def run() -> None:
        ids = [(await keep(records, b"")).id for _ in range(5)]
        for order, expected in (("asc", ids), ("desc", ids[::-1])):
            seen: list[str] = []
            more = True
            while more:
                page = await records.files.list(PageRequest(2, order, seen[-1] if seen else None), None)
                seen += [file.id for file in page.data]
                more = page.has_more
            assert seen == expected
        with pytest.raises(InvalidRequestError, match="nothing"):
            await records.files.list(PageRequest(2, "asc", "nothing"), None)

    asyncio.run(run())


def test_a_directory_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"state directory .*/file/state cannot be used.*--state-dir"):
        Records.open(tmp_path / "file/state", 1)
