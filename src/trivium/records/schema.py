"""The tables, and the steps that lead from each version of them to the next."""

from __future__ import annotations

import sqlite3

from trivium.types.errors import StorageError

# Times are Unix seconds. `serial` is the order of creation, which ids do not have.
FILES_AND_BATCHES = """
CREATE TABLE files (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL
);
CREATE TABLE batches (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    status TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    output_seconds INTEGER NOT NULL,
    metadata TEXT,
    errors TEXT,
    output_file_id TEXT,
    error_file_id TEXT,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX batches_by_status ON batches (status);
CREATE TABLE batch_requests (
    batch_id TEXT NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    line INTEGER NOT NULL,        -- in the input file, from 1
    rank INTEGER NOT NULL,        -- the order in which they run
    custom_id TEXT,
    start INTEGER NOT NULL,       -- of the line in the input file, bytes
    length INTEGER NOT NULL,
    strikes INTEGER NOT NULL DEFAULT 0,  -- times that the engine died with the request in its hands
    succeeded INTEGER,            -- NULL until it is answered
    result TEXT,                  -- its line in the output or error file
    PRIMARY KEY (batch_id, line)
) WITHOUT ROWID;
CREATE INDEX batch_requests_unanswered ON batch_requests (batch_id, rank) WHERE succeeded IS NULL;
"""

VERSIONS = (FILES_AND_BATCHES,)


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(VERSIONS):
            raise StorageError(
                f"the records are of version {version}, but this program knows them up to version {len(VERSIONS)}:"
                " it is older than the one that wrote them"
            )
        for script in VERSIONS[version:]:
            for statement in script.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(VERSIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
