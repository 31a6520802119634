"""HEAD and POST /api/blobs/DIGEST, and the models that are then created from such files."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from trivium.records.blobs import Blobs
from trivium.serve.body import body_in_time, body_parts
from trivium.serve.errors import ApiError, invalid
from trivium.serve.state import ServerState
from trivium.store import ModelStore

DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
FILE_NAME = re.compile(r"[\w][\w.-]{0,254}")


async def has_blob(state: ServerState, request: Request) -> Response:
    path = state.records.blobs.path(_blob_id(request.path_params["digest"]))
    return Response(status_code=200 if path.is_file() else 404)


async def put_blob(state: ServerState, request: Request) -> Response:
    """Kept for a day, for the create that follows."""
    blob_id = _blob_id(request.path_params["digest"])
    blobs = state.records.blobs
    incoming = await asyncio.to_thread(blobs.incoming)
    try:
        async with body_in_time(state.limits.file_seconds):
            async for part in body_parts(request, state.limits.blob_bytes, state.limits):
                await asyncio.to_thread(incoming.write, part)
        if f"sha256-{incoming.sha256}" != blob_id:
            raise invalid(f"digest mismatch: the bytes that came are sha256:{incoming.sha256}", "digest")
        await asyncio.to_thread(blobs.publish, incoming, blob_id)
    finally:
        await asyncio.to_thread(incoming.discard)
    return Response(status_code=201)


async def create_from_blobs(state: ServerState, name: str, files: Mapping[str, str]) -> None:
    """`files`: digests by file name: one GGUF file, or what a directory with safetensors has."""
    paths = {_file_name(file): _kept(state.records.blobs, digest) for file, digest in files.items()}
    await asyncio.to_thread(_store, name, paths)


def _store(name: str, paths: Mapping[str, Path]) -> None:
    with tempfile.TemporaryDirectory(prefix="trivium-create-") as directory:
        for file, path in paths.items():
            Path(directory, file).symlink_to(path)
        only = next(iter(paths))
        source = Path(directory, only) if len(paths) == 1 and only.endswith(".gguf") else Path(directory)
        ModelStore().pull(str(source), name=name, copy=True)


def _kept(blobs: Blobs, digest: str) -> Path:
    path = blobs.path(_blob_id(digest))
    if not path.is_file():
        raise ApiError(404, f"there is no blob {digest[:80]!r}: send it to /api/blobs first", param="files")
    return path


def _blob_id(digest: str) -> str:
    found = DIGEST.fullmatch(digest)
    if found is None:
        raise invalid(f"a digest is 'sha256:' and 64 hexadecimal digits, but here it is {digest[:80]!r}", "digest")
    return f"sha256-{found[1]}"


def _file_name(name: str) -> str:
    plain = name.rpartition("/")[2]
    if not FILE_NAME.fullmatch(plain):
        raise invalid(f"{name[:80]!r} is no name for a file", "files")
    return plain
