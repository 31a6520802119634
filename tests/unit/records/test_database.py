from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trivium.records.database import Database
from trivium.records.schema import VERSIONS
from trivium.types.errors import StorageError


def put(name: str):
    def insert(connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO files (id, created_at, filename, purpose, bytes, sha256) VALUES (?, 0, '', '', 0, '')", (name,)
        )

    return insert


def names(connection: sqlite3.Connection) -> list[str]:
    return [row["id"] for row in connection.execute("SELECT id FROM files ORDER BY id")]


@pytest.fixture
def database(tmp_path: Path):
    database = Database(tmp_path / "records.sqlite3")
    yield database
    database.close()


def test_what_was_written_is_read(database: Database) -> None:
    async def run() -> list[str]:
        await asyncio.gather(*(database.write(put(f"{number:03}")) for number in range(500)))
        return await database.read(names)

    assert asyncio.run(run()) == [f"{number:03}" for number in range(500)]


def test_a_write_that_fails_takes_back_its_own_changes_and_no_others(database: Database) -> None:
    def half_done(connection: sqlite3.Connection) -> None:
        put("half")(connection)
        raise ValueError("no")

    async def run() -> list[str]:
        results = await asyncio.gather(
            database.write(put("a")), database.write(half_done), database.write(put("b")), return_exceptions=True
        )
        assert [type(result) for result in results] == [type(None), ValueError, type(None)]
        return await database.read(names)

    assert asyncio.run(run()) == ["a", "b"]


def test_a_write_that_keeps_a_commit_from_the_disk_fails_and_no_other_of_the_commit(database: Database) -> None:
    all_asked = threading.Event()

    def wait(connection: sqlite3.Connection) -> None:
        all_asked.wait(10)

    def broken_at_the_commit(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA defer_foreign_keys = ON")
        connection.execute(
            "INSERT INTO conversation_items (conversation_id, id, item) VALUES ('none', 'an item', '{}')"
        )

    async def run() -> list[str]:
        first = asyncio.create_task(database.write(wait))
        others = [asyncio.create_task(database.write(work)) for work in (put("a"), broken_at_the_commit, put("b"))]
        await asyncio.sleep(0)  # so that all are asked for
        all_asked.set()
        await first
        results = await asyncio.gather(*others, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), StorageError, type(None)]
        return await database.read(names)

    assert asyncio.run(run()) == ["a", "b"]


def test_a_broken_rule_of_the_tables_is_told_as_a_failure_of_the_storage(database: Database) -> None:
    async def run() -> None:
        await database.write(put("a"))
        with pytest.raises(StorageError, match="UNIQUE"):
            await database.write(put("a"))
        await database.write(put("b"))

    asyncio.run(run())


def test_a_write_whose_asker_was_cancelled_is_done_before_the_books_are_settled(database: Database) -> None:
    def slow(connection: sqlite3.Connection) -> None:
        time.sleep(0.1)
        put("late")(connection)

    async def run() -> list[str]:
        asking = asyncio.create_task(database.write(slow))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await database.settle()
        return await database.read(names)

    assert asyncio.run(run()) == ["late"]


def test_two_processes_may_write_to_one_database(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite3"
    first, second = Database(path), Database(path)

    async def run() -> list[str]:
        writes = [(first, f"a{number}") for number in range(50)] + [(second, f"b{number}") for number in range(50)]
        await asyncio.gather(*(database.write(put(name)) for database, name in writes))
        return await first.read(names)

    try:
        assert len(asyncio.run(run())) == 100
    finally:
        first.close()
        second.close()


def test_what_was_awaited_survives_kill_9(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_database import Database, put

async def run():
    database = Database(Path({str(tmp_path / "records.sqlite3")!r}))
    number = 0
    while True:
        await asyncio.gather(*(database.write(put(f"{{number + i:06}}")) for i in range(7)))
        number += 7
        print(number, flush=True)

asyncio.run(run())
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(20)]
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    promised = int(rest[-1]) if rest else seen[-1]
    database = Database(tmp_path / "records.sqlite3")
    kept = database.read_here(names)
    database.close()
    assert kept[:promised] == [f"{number:06}" for number in range(promised)]


def test_records_of_a_later_version_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageError, match=f"version 99, but this program knows them up to version {len(VERSIONS)}"):
        Database(path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite3"
    path.write_bytes(b"this is not a database, but it is long enough to be taken for one" * 100)
    with pytest.raises(StorageError, match="not a database"):
        Database(path)
