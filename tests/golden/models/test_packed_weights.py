"""Packed weights on disk: found again by the next start, believed only if sound, never in the way."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from oracle import SIZES, random_weights
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from trivium import faults
from trivium.formats import packed_file
from trivium.formats.packed_file import PackedFile, packed_path
from trivium.formats.quant_types import QUANT_TYPES
from trivium.formats.source import open_source
from trivium.kernels.native import LAYOUT_VERSION, native_state
from trivium.kernels.ops import Ops
from trivium.kernels.select import select_ops
from trivium.kernels.weights import LinearWeight, PackedTensor, QuantizedTensor
from trivium.models import packed_weights
from trivium.models.decoder import Decoder
from trivium.models.layers import DenseMLP
from trivium.models.load import load_model
from trivium.models.packed_weights import PackedOnDisk
from trivium.store import DEFAULT_MODEL, ModelStore

pytestmark = pytest.mark.skipif("native" not in native_state(), reason="the native kernels were not built")

ROOM = 1 << 30


@pytest.fixture(autouse=True)
def tiny_models_are_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weights, "FEWEST_BYTES", 0)


@pytest.fixture(scope="module")
def ops() -> Ops:
    return select_ops("native", num_threads=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tied = LlamaConfig(**SIZES, tie_word_embeddings=True)
    random_weights(LlamaForCausalLM(tied)).bfloat16().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def start(model: Path, directory: Path, ops: Ops, room: int = ROOM) -> tuple[Decoder, PackedOnDisk]:
    source = open_source(model)
    assert ops.packing is not None
    packed = PackedOnDisk(directory, room, source, ops.packing, "blocks")
    decoder = load_model(source, ops, torch.float32, "cpu", packed=packed)
    packed.wait()
    return decoder, packed


def answers(decoder: Decoder) -> Tensor:
    """What its matrices make of one input."""
    matrices = [decoder.lm_head]
    for layer in decoder.layers:
        assert isinstance(layer.mlp, DenseMLP)
        matrices += [*layer.attention.qkv.weights, layer.attention.o.weight, layer.mlp.down.weight]
    x = torch.arange(0, 1, 1 / 512)
    return torch.cat([decoder.ops.linear(x[None, : m.shape[1]], m, None).flatten() for m in matrices])


def found(path: Path, ops: Ops) -> str:
    """What is told of a start that had nothing to pack."""
    assert ops.packing is not None
    return f"{'copied to large pages' if ops.packing.memory.are_offered else 'mapped'} from {path}"


def test_the_next_start_takes_what_the_first_one_packed(model: Path, tmp_path: Path, ops: Ops) -> None:
    first, kept = start(model, tmp_path / "packed", ops)
    path = packed_path(tmp_path / "packed", model, "blocks")
    assert kept.state == f"packed in memory, kept in {path} (no packed file yet)"
    assert list((tmp_path / "packed").iterdir()) == [path]
    second, taken = start(model, tmp_path / "packed", ops)
    assert taken.state == found(path, ops)
    assert isinstance(first.lm_head, PackedTensor) and isinstance(second.lm_head, PackedTensor)
    assert torch.equal(first.lm_head.data, second.lm_head.data)
    assert torch.equal(answers(first), answers(second))


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


def header_of(content: bytes) -> tuple[dict[str, Any], int]:
    """And where it ends."""
    prefix = packed_file._PREFIX
    _, nbytes, _ = prefix.unpack_from(content)
    return msgspec.msgpack.decode(content[prefix.size : prefix.size + nbytes]), prefix.size + nbytes


def other_version(content: bytes) -> bytes:
    """A sound file of a later Trivium."""
    header, end = header_of(content)
    encoded = msgspec.msgpack.encode(header | {"version": LAYOUT_VERSION + 1})
    prefix = packed_file._PREFIX.pack(packed_file.MAGIC, len(encoded), packed_file._short_digest(encoded))
    return prefix + encoded + content[end:]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "is empty"),
    "a few bytes": (lambda content: content[:10], "10 bytes long"),
    "cut in the header": (lambda content: content[:100], "may be truncated"),
    "cut in the weights": (lambda content: content[: len(content) // 2], "does not lie in its"),
    "one byte short": (lambda content: content[:-1], "does not lie in its"),
    "something else": (lambda content: os.urandom(len(content)), "is not a packed file"),
    "a bit of the header's length": (lambda content: flipped(content, 14), "claims a header of"),
    "a bit of the header": (lambda content: flipped(content, 60), "its header is damaged"),
    "a bit of the last weight": (lambda content: flipped(content, len(content) - 1), "was damaged"),
    "a bit of the first weight": (lambda c: flipped(c, header_of(c)[0]["weights"][0]["offset"]), "was damaged"),
    "another version": (other_version, "is of another version"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_noticed_and_made_anew(damage: str, model: Path, tmp_path: Path, ops: Ops) -> None:
    directory = tmp_path / "packed"
    want = answers(start(model, directory, ops)[0])
    path = packed_path(directory, model, "blocks")
    sound = path.read_bytes()
    change, told = DAMAGES[damage]
    path.unlink()  # as every writer does; who has it mapped keeps the old one
    path.write_bytes(change(sound))
    decoder, packed = start(model, directory, ops)
    assert packed.state.startswith(f"packed in memory, kept in {path} (") and told in packed.state
    assert torch.equal(answers(decoder), want)
    assert path.read_bytes() == sound
    assert start(model, directory, ops)[1].state == found(path, ops)


def test_a_file_that_vanishes_while_it_is_used_harms_nobody(model: Path, tmp_path: Path, ops: Ops) -> None:
    want = answers(start(model, tmp_path / "packed", ops)[0])
    decoder, _ = start(model, tmp_path / "packed", ops)
    packed_path(tmp_path / "packed", model, "blocks").unlink()
    assert torch.equal(answers(decoder), want)


@pytest.mark.parametrize("same_time", [False, True])
def test_a_model_that_has_changed_is_packed_anew(model: Path, tmp_path: Path, ops: Ops, same_time: bool) -> None:
    weights = model / "model.safetensors"
    start(model, tmp_path / "packed", ops)
    before = weights.stat()
    random_weights(LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)), seed=1).bfloat16().save_pretrained(
        model
    )
    if same_time:
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_size == before.st_size
    decoder, packed = start(model, tmp_path / "packed", ops)
    assert "the model's files have changed" in packed.state
    assert torch.equal(answers(decoder), answers(load_model(open_source(model), ops, torch.float32, "cpu")))


def test_a_file_of_another_model_under_this_ones_name_is_not_believed(model: Path, tmp_path: Path, ops: Ops) -> None:
    """Its header claims this model's files, and its weights are of other shapes."""
    directory = tmp_path / "packed"
    start(model, directory, ops)
    path = packed_path(directory, model, "blocks")
    header = PackedFile.open(path).header
    wrong = msgspec.structs.replace(
        header, weights=tuple(msgspec.structs.replace(w, shape=(1, *w.shape[1:])) for w in header.weights)
    )
    file = PackedFile.open(path)
    packed_file.write_packed(path, wrong, [file.read(weight) for weight in header.weights])
    assert "of another model" in start(model, directory, ops)[1].state


def test_a_directory_that_cannot_be_made_only_means_packing_in_memory(model: Path, tmp_path: Path, ops: Ops) -> None:
    (tmp_path / "file").write_text("")
    decoder, packed = start(model, tmp_path / "file" / "packed", ops)
    assert re.fullmatch(r"packed in memory, not kept: .*packed cannot be written: .+", packed.state)
    assert answers(decoder).isfinite().all()


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """What a full disk does to a writer; Python ignores the signal that goes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_leaves_nothing_behind_and_is_told(
    model: Path, tmp_path: Path, ops: Ops, caplog: pytest.LogCaptureFixture
) -> None:
    with files_of_at_most(20_000):
        decoder, _ = start(model, tmp_path / "packed", ops)
    assert "could not be kept" in caplog.text and "File too large" in caplog.text
    assert list((tmp_path / "packed").iterdir()) == []
    assert answers(decoder).isfinite().all()


@pytest.mark.parametrize("action", ["os_error", "raise"])
@pytest.mark.parametrize("point", ["packed.read", "packed.write"])
def test_a_fault_around_the_packed_file_harms_no_start(
    point: str, action: str, model: Path, tmp_path: Path, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, _ = start(model, tmp_path / "packed", ops)
    if point == "packed.write":
        packed_path(tmp_path / "packed", model, "blocks").unlink()
    plan = tmp_path / "faults.json"
    plan.write_text(json.dumps([{"point": point, "action": action}]))
    monkeypatch.setattr(faults, "_INJECTOR", faults.Injector(plan))
    disturbed, _ = start(model, tmp_path / "packed", ops)
    assert (tmp_path / "faults.json.fired").exists()
    assert torch.equal(answers(undisturbed), answers(disturbed))
    again, _ = start(model, tmp_path / "packed", ops)
    assert torch.equal(answers(undisturbed), answers(again))


def test_more_than_packed_files_may_take_is_not_kept(model: Path, tmp_path: Path, ops: Ops) -> None:
    _, packed = start(model, tmp_path / "packed", ops, room=1000)
    assert re.fullmatch(r"packed in memory, not kept: [\d,]+ bytes are more than the 1,000 that .*", packed.state)


def test_the_room_that_a_file_wants_is_told_before_it_is_written(model: Path, tmp_path: Path, ops: Ops) -> None:
    """Twice its size, since a disk is never filled by more than half of what is free."""
    assert ops.packing is not None
    packed = PackedOnDisk(tmp_path / "packed", ROOM, open_source(model), ops.packing, "blocks")
    assert packed.room_wanted(1000) == 2000
    assert packed.room_wanted(ROOM + 1) == 0, "it would not be kept"
    start(model, tmp_path / "packed", ops)[1].wait()
    assert PackedOnDisk(tmp_path / "packed", ROOM, open_source(model), ops.packing, "blocks").room_wanted(1000) == 0


def test_small_models_are_not_kept(model: Path, tmp_path: Path, ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    _, packed = start(model, tmp_path / "packed", ops)
    assert "packed again sooner than read" in packed.state
    assert not (tmp_path / "packed").exists()


def test_the_file_not_used_for_the_longest_makes_room(tmp_path: Path, ops: Ops) -> None:
    directory = tmp_path / "packed"
    paths = []
    for seed, name in enumerate(["a", "b", "c"]):
        random_weights(LlamaForCausalLM(LlamaConfig(**SIZES)), seed).bfloat16().save_pretrained(tmp_path / name)
        paths.append(packed_path(directory, tmp_path / name, "blocks"))
    a, b, c = paths
    start(tmp_path / "a", directory, ops)
    room = a.stat().st_size * 5 // 2
    start(tmp_path / "b", directory, ops, room)
    os.utime(a, (1, 1))
    os.utime(b, (2, 2))
    assert start(tmp_path / "a", directory, ops, room)[1].state == found(a, ops)
    start(tmp_path / "c", directory, ops, room)
    assert a.exists() and not b.exists() and c.exists()


def test_what_killed_writers_and_removed_models_left_is_swept(model: Path, tmp_path: Path, ops: Ops) -> None:
    directory = tmp_path / "packed"
    random_weights(LlamaForCausalLM(LlamaConfig(**SIZES))).bfloat16().save_pretrained(tmp_path / "gone")
    start(tmp_path / "gone", directory, ops)
    (tmp_path / "gone" / "model.safetensors").unlink()
    killed, working = directory / "x.packed.123.new", directory / "x.packed.456.new"
    killed.write_bytes(b"half")
    with open(working, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        start(model, directory, ops)
        assert set(directory.iterdir()) == {packed_path(directory, model, "blocks"), working}


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's own account of memory")
def test_a_packed_models_own_pages_do_not_stay_in_memory(tmp_path: Path, ops: Ops) -> None:
    path = Path(shutil.copy(ModelStore().resolve(DEFAULT_MODEL), tmp_path / "model.gguf"))
    decoder, _ = start(path, tmp_path / "packed", ops)
    assert isinstance(decoder.lm_head, PackedTensor)
    # The embedding is read by rows, and a page that is read brings its neighbours.
    assert 0 < resident_bytes(path) < path.stat().st_size // 5


def resident_bytes(path: Path) -> int:
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(os.path.realpath(path))
        elif ours and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def test_every_changed_byte_and_every_length_changes_the_checksum(ops: Ops) -> None:
    assert ops.packing is not None
    checksum = ops.packing.checksum
    data = torch.randint(256, (200,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen = {checksum(data[:length]) for length in range(201)}
    for at in range(200):
        changed = data.clone()
        changed[at] ^= 1
        seen.add(checksum(changed))
    assert len(seen) == 401
    assert checksum(data) == checksum(data.clone())
    large = torch.zeros(9 << 20, dtype=torch.uint8)
    swapped = large.clone()
    large[1 << 20], swapped[6 << 20] = 1, 1
    assert checksum(large) != checksum(swapped) != checksum(torch.zeros_like(large))


PACKED_DIGESTS = {
    "F32": "752abf125caed741",
    "F16": "cba48b93727bbe4e",
    "BF16": "95e633079a6f2b21",
    "Q8_0": "45be015e58a2eced",
    "Q4_0": "52602179860c6c63",
    "Q4_1": "b75a727aacdc6bf6",
    "Q5_0": "18342ad9c4eba75c",
    "Q5_1": "4ade13ef4280d7a3",
    "Q2_K": "51da0bb2c3130d6c",
    "Q3_K": "15ccd351124dd7cc",
    "Q4_K": "1b591c14c25a22e5",
    "Q5_K": "5a1c4fde2303b075",
    "Q6_K": "61f4c772cb42efd0",
    "Q8_0 in rows": "fe38d7c38ff41471",
    "SHORT_BF16": "c54966dec64bf3a9",
    "Q4_K_UNITS": "fce09a6a236ccca3",
    "Q5_K_UNITS": "dfdbb362970ce567",
    "Q6_K_UNITS": "6c6b03948d24eefa",
}


def test_the_layout_is_that_of_its_version(ops: Ops) -> None:
    """A change of the packed layout must change LAYOUT_VERSION, or files of the old one would be read as new."""

    def blocks(type: str) -> QuantizedTensor:
        row_bytes = 512 // QUANT_TYPES[type].block_elements * QUANT_TYPES[type].block_bytes
        number = torch.arange(21 * row_bytes)
        data = ((number * 151 + number // 256 * 29) % 256).to(torch.uint8).view(21, row_bytes)
        return QuantizedTensor(type, data, (21, 512))

    def digest(packed: LinearWeight) -> str:
        assert isinstance(packed, PackedTensor)
        return hashlib.sha256(packed.data.numpy().tobytes()).hexdigest()[:16]

    assert ops.packing is not None
    digests = {type: digest(ops.prepare(blocks(type))) for type in QUANT_TYPES}
    finite = blocks("Q8_0")
    finite.data.view(21, -1, 34)[:, :, :2] = torch.tensor([0, 0x3C])  # every scale is 1
    digests["Q8_0 in rows"] = digest(ops.packing.pack_as(finite, ops.packing.rows_type))
    # Some slices have more upper bytes than the form's table holds.
    number = torch.arange(21 * 512)
    bits = 0x3C00 + number % 0x800 + 0x8000 * (number % 3 == 0) + 0x1000 * (number % 997 == 0)
    bfloat16 = bits.to(torch.int16).view(torch.bfloat16).view(21, 512)
    digests["SHORT_BF16"] = digest(ops.packing.pack_as(bfloat16, ops.packing.short_type))
    for type, units in ops.packing.units_types.items():
        finite = blocks(type)
        scales = finite.data.view(21, 2, -1)[..., 208:210] if type == "Q6_K" else finite.data.view(21, 2, -1)[..., :4]
        scales.copy_(torch.tensor([0, 0x3C, 0, 0x40])[: scales.shape[-1]])  # 1, and for minima 2
        digests[units] = digest(ops.packing.pack_as(finite, units))
    assert (LAYOUT_VERSION, digests) == (1, PACKED_DIGESTS)
