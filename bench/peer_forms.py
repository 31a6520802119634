"""A model in the forms that peers read, made once from its GGUF file, offline."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from peer_catalog import SCRIPTS, Peer


def model_for(peer: Peer, home: Path, gguf: Path) -> Path:
    match peer.form:
        case "gguf":
            return gguf
        case "safetensors":
            return _safetensors(peer, home, gguf)
        case "onnx":
            return _onnx(peer, home, gguf)


def _safetensors(peer: Peer, home: Path, gguf: Path) -> Path:
    convert = [str(peer.python(home)), str(SCRIPTS / "convert_to_safetensors.py"), str(gguf)]
    return _made(home / "models" / f"{gguf.stem}-bf16", lambda out: [*convert, str(out)])


def _onnx(peer: Peer, home: Path, gguf: Path) -> Path:
    source = _safetensors(peer, home, gguf)
    build = [str(peer.python(home)), "-m", "onnxruntime_genai.models.builder", "-p", "int4", "-e", "cpu"]
    cache = ["-c", str(home / "models" / "cache")]
    return _made(
        home / "models" / f"{gguf.stem}-int4-onnx", lambda out: [*build, "-i", str(source), "-o", str(out), *cache]
    )


def _made(directory: Path, command: Callable[[Path], list[str]]) -> Path:
    """The directory, whole: what breaks off halfway is not found the next time."""
    if not directory.exists():
        part = directory.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
        with (directory.parent / f"{directory.name}.log").open("w") as log:
            subprocess.run(command(part), check=True, stdout=log, stderr=log, env=offline)
        part.rename(directory)
    return directory
