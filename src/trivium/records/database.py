"""One SQLite database: a thread that writes, whose commits are shared by all who wait for one, and parallel readers.

Several processes may use the same file; each write is one transaction, and what was awaited survives a kill and a
power cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from trivium.faults import fault_point
from trivium.records.schema import bring_up_to_date
from trivium.types.errors import StorageError

T = TypeVar("T")

BUSY_SECONDS = 20.0  # for which another process's write is waited for
MAX_WRITES_PER_COMMIT = 256


@dataclass
class _Write(Generic[T]):
    work: Callable[[sqlite3.Connection], T]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    result: T | None = None
    error: Exception | None = None

    def deliver(self) -> None:
        """To the event loop that waits, unless it has ended meanwhile."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self.future.cancelled():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


class Database:
    def __init__(self, path: Path) -> None:
        """Creates the file or brings it up to date; raises StorageError where that cannot be."""
        self._path = path
        self._idle_readers: list[sqlite3.Connection] = []
        self._writes: queue.SimpleQueue[_Write[Any] | None] = queue.SimpleQueue()
        try:
            connection = self._connect()
            bring_up_to_date(connection)
        except sqlite3.Error as error:
            raise StorageError(f"{path} cannot be used: {error}") from error
        self._writer = threading.Thread(target=self._write_all, args=(connection,), name="records", daemon=True)
        self._writer.start()

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `work`, which ran in a transaction of its own; returns once that is on the disk."""
        loop = asyncio.get_running_loop()
        write = _Write(work, loop, loop.create_future())
        self._writes.put(write)
        result: T = await write.future
        return result

    async def settle(self) -> None:
        """Until all writes asked for so far are on the disk, also those whose askers were cancelled meanwhile."""
        await self.write(lambda connection: None)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self.read_here, work)

    def read_here(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In the calling thread."""
        try:
            connection = self._idle_readers.pop()
        except IndexError:
            connection = self._connect()
        try:
            fault_point("records.read")
            return work(connection)
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"{self._path} could not be read: {error}") from error
        finally:
            self._idle_readers.append(connection)

    def close(self) -> None:
        """After the writes that were asked for."""
        self._writes.put(None)
        self._writer.join()
        while self._idle_readers:
            self._idle_readers.pop().close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _write_all(self, connection: sqlite3.Connection) -> None:
        while (first := self._writes.get()) is not None:
            writes = [first]
            ends = False
            while len(writes) < MAX_WRITES_PER_COMMIT and not ends:
                try:
                    write = self._writes.get_nowait()
                except queue.Empty:
                    break
                if write is None:
                    ends = True
                else:
                    writes.append(write)
            self._commit(connection, writes)
            for write in writes:
                write.deliver()
            if ends:
                break
        connection.close()

    def _commit(self, connection: sqlite3.Connection, writes: list[_Write[Any]]) -> None:
        """One transaction for all; a write that fails takes back its own changes and no other's. Where several cannot be
        committed together, each is tried alone: what keeps one of them off the disk need not keep the others."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except Exception as error:  # who waits is told; the thread that writes for all goes on
            for write in writes:
                write.error = self._told(error)
            return
        try:
            for write in writes:
                write.error = None
                connection.execute("SAVEPOINT one")
                try:
                    fault_point("records.write")
                    write.result = write.work(connection)
                except Exception as error:
                    connection.execute("ROLLBACK TO one")
                    write.error = self._told(error)
                connection.execute("RELEASE one")
            fault_point("records.commit")
            connection.execute("COMMIT")
        except Exception as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(writes) == 1:
                writes[0].error = self._told(error)
                return
            for write in writes:
                self._commit(connection, [write])

    def _told(self, error: Exception) -> Exception:
        if isinstance(error, (sqlite3.Error, OSError)):
            return StorageError(f"{self._path} could not be written: {error}")
        return error
