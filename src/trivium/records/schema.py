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

# An item may be in several places under one id: clients send back what they were given.
RESPONSES_AND_CONVERSATIONS = """
CREATE TABLE responses (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    expires_at INTEGER NOT NULL,
    status TEXT NOT NULL,
    previous_id TEXT,
    object BLOB NOT NULL,         -- JSON, as clients see it
    events BLOB                   -- of a background response that has ended: its stream, compressed
);
CREATE INDEX responses_by_status ON responses (status);
CREATE INDEX responses_by_expiry ON responses (expires_at);
CREATE TABLE response_items (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    response_id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    is_input INTEGER NOT NULL,
    id TEXT NOT NULL,
    item BLOB NOT NULL            -- JSON
);
CREATE INDEX response_items_by_response ON response_items (response_id);
CREATE INDEX response_items_by_id ON response_items (id);
CREATE TABLE conversations (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    metadata TEXT NOT NULL
);
CREATE TABLE conversation_items (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    item BLOB NOT NULL            -- JSON
);
CREATE INDEX conversation_items_by_conversation ON conversation_items (conversation_id);
CREATE INDEX conversation_items_by_id ON conversation_items (id);
"""

VARIANTS = """
CREATE TABLE variants (
    name TEXT PRIMARY KEY,
    variant BLOB NOT NULL         -- JSON
) WITHOUT ROWID;
"""

# The name of the API key that left them here; empty where none was needed.
OWNERS = """
ALTER TABLE files ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE conversations ADD COLUMN owner TEXT NOT NULL DEFAULT '';
"""

VERSIONS = (FILES_AND_BATCHES, RESPONSES_AND_CONVERSATIONS, VARIANTS, OWNERS)


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
