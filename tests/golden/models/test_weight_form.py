"""Which weights are packed in another form than they are stored in, and that the plan, the disk and the kernels agree about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf_file import write_gguf
from oracle import loaded, prompts, random_weights
from paged_run import generate
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.engine.report import WEIGHTS
from trivium.formats.packed_file import PackedForm, packed_files, packed_path
from trivium.formats.source import open_source
from trivium.kernels.native import BYTE_ROWS, SHORT_BFLOAT16, UNITS_OF_BYTES, native_state
from trivium.kernels.ops import Ops
from trivium.kernels.select import select_ops
from trivium.kernels.weights import PackedTensor
from trivium.models import packed_weights, weight_form
from trivium.models.decoder import Decoder
from trivium.models.layers import DenseMLP, SparseMLP
from trivium.models.load import load_model
from trivium.models.locate import LocatedWeights, locate_weights
from trivium.models.packed_weights import PackedOnDisk
from trivium.models.weight_form import AS_STORED, FormWish, choose_form
from trivium.types.errors import ConfigError
from trivium.types.report import Report

pytestmark = pytest.mark.skipif("native" not in native_state(), reason="the native kernels were not built")


@pytest.fixture(scope="module")
def ops() -> Ops:
    return select_ops("native", num_threads=2)


def saved(
    directory: Path,
    kind: str,
    hidden: int = 128,
    wide: int = 96,
    head: str | None = None,
    down: str | None = None,
    exponents_of_down: Tensor | None = None,
) -> Path:
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=hidden,
        intermediate_size=wide,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )

    def type_of(name: str) -> str:
        if down and "ffn_down" in name:
            return down
        return head if head and name == "token_embd.weight" else kind

    model = random_weights(LlamaForCausalLM(config))
    if exponents_of_down is not None:
        weight = model.model.layers[0].mlp.down_proj.weight
        places = torch.arange(weight.numel()).view(weight.shape)
        weight.data = 2.0 ** exponents_of_down[places % len(exponents_of_down)]
    return write_gguf(model, "llama", directory / f"{kind}.gguf", type_of)


def located(path: Path) -> LocatedWeights:
    return locate_weights(open_source(path))


def types(decoder: Decoder) -> dict[str, str]:
    layer = decoder.layers[0]
    assert isinstance(layer.mlp, DenseMLP)
    weights = {"head": decoder.lm_head, "q": layer.attention.qkv.weights[0], "down": layer.mlp.down.weight}
    assert all(isinstance(weight, PackedTensor) for weight in weights.values())
    return {name: weight.type for name, weight in weights.items() if isinstance(weight, PackedTensor)}


def with_byte_sums(ops: Ops, there_are: bool) -> Ops:
    """As on a processor that has an instruction for them, or has none."""
    assert ops.packing is not None
    return replace(ops, packing=replace(ops.packing, sums_bytes=there_are))


def test_few_bytes_are_rows_and_many_stay_in_their_blocks(
    tmp_path: Path, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = located(saved(tmp_path, "Q4_1"))
    assert choose_form("auto", model, with_byte_sums(ops, True)).name == "rows"
    assert choose_form("auto", model, with_byte_sums(ops, False)).name == "blocks"
    monkeypatch.setattr(weight_form, "FEW_BYTES", 1000)
    chosen = choose_form("auto", model, with_byte_sums(ops, True))
    assert chosen.name == "blocks" and [one.value for one in chosen.chosen] == ["blocks"]


def test_blocks_of_bytes_are_rows_whatever_the_size(tmp_path: Path, ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_form, "FEW_BYTES", 1000)
    assert choose_form("auto", located(saved(tmp_path, "Q8_0")), ops).name == "rows"


@pytest.mark.parametrize("many", [True, False])
def test_of_many_bytes_only_blocks_of_bytes_are_rows_and_where_bytes_are_widened_of_few_too(
    many: bool, tmp_path: Path, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, "Q4_1", wide=128, head="Q8_0")
    if many:
        monkeypatch.setattr(weight_form, "FEW_BYTES", 1000)
    chosen = choose_form("auto", located(path), with_byte_sums(ops, many))
    assert chosen.name == "mixed" and [one.value for one in chosen.chosen] == ["mixed"]
    source = open_source(path)
    assert types(load_model(source, ops, torch.float32, "cpu", form=chosen)) == {
        "head": BYTE_ROWS,
        "q": "Q4_1",
        "down": "Q4_1",
    }


def test_who_asks_for_a_form_gets_it(tmp_path: Path, ops: Ops) -> None:
    model = located(saved(tmp_path, "Q4_1"))
    wishes: list[PackedForm] = ["blocks", "rows", "mixed"]
    for wish in wishes:
        chosen = choose_form(wish, model, ops)
        assert chosen.name == wish and not chosen.chosen


def test_rows_that_cannot_be_are_refused_to_who_asks_for_them(tmp_path: Path, ops: Ops) -> None:
    floats, blocks = (located(saved(tmp_path, kind)) for kind in ("F16", "Q4_1"))
    assert choose_form("auto", floats, ops) is AS_STORED
    assert choose_form("auto", blocks, select_ops("reference")) is AS_STORED
    with pytest.raises(ConfigError, match="it has no quantized matrix that can be"):
        choose_form("rows", floats, ops)
    with pytest.raises(ConfigError, match="the native kernels do not run its layers"):
        choose_form("rows", blocks, select_ops("reference"))


def test_rows_that_cannot_be_are_told_to_who_accepts_what_is_possible(tmp_path: Path, ops: Ops) -> None:
    chosen = choose_form("rows", located(saved(tmp_path, "F16")), ops, accepts_other=True)
    assert chosen.name == "blocks"
    assert [(one.option, one.value) for one in chosen.chosen] == [("weight_form", "blocks")]
    assert "no quantized matrix" in chosen.chosen[0].reason


def with_units(ops: Ops, are_fast: bool) -> Ops:
    """As on a processor that makes bytes of units by vectors, or does not."""
    assert ops.packing is not None
    return replace(ops, packing=replace(ops.packing, makes_bytes=are_fast))


def test_k_types_are_units_where_bytes_are_made_fast_and_many_are_read(
    tmp_path: Path, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = located(saved(tmp_path, "Q4_K", hidden=256, wide=256))
    assert choose_form("auto", model, with_byte_sums(with_units(ops, True), True)).name == "rows"
    monkeypatch.setattr(weight_form, "FEW_BYTES", 1000)
    chosen = choose_form("auto", model, with_units(ops, True))
    assert chosen.name == "units" and [one.value for one in chosen.chosen] == ["units"]
    assert choose_form("auto", model, with_units(ops, False)).name == "blocks"


def test_beside_units_blocks_of_bytes_are_rows_and_other_types_stay(tmp_path: Path, ops: Ops) -> None:
    path = saved(tmp_path, "Q4_K", hidden=256, wide=320, head="Q8_0", down="Q4_1")
    chosen = choose_form("units", located(path), ops)
    assert not chosen.chosen
    assert types(load_model(open_source(path), ops, torch.float32, "cpu", form=chosen)) == {
        "head": BYTE_ROWS,
        "q": UNITS_OF_BYTES["Q4_K"],
        "down": "Q4_1",
    }


def test_units_that_cannot_be_are_refused_to_who_asks_for_them(tmp_path: Path, ops: Ops) -> None:
    with pytest.raises(ConfigError, match="in units of bytes: it has none of Q4_K, Q5_K, Q6_K"):
        choose_form("units", located(saved(tmp_path, "Q4_1")), ops)


@pytest.mark.parametrize("kind", list(UNITS_OF_BYTES))
def test_logits_of_units_are_near_those_of_blocks(kind: str, tmp_path: Path, ops: Ops) -> None:
    path = saved(tmp_path, kind, hidden=256, wide=256)
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(0))
    units, blocks = (loaded(path, kernels="native", form=form).lm_head for form in ("units", "blocks"))
    assert isinstance(units, PackedTensor) and units.type == UNITS_OF_BYTES[kind]
    want = ops.linear(x, blocks, None)
    assert (ops.linear(x, units, None) - want).abs().max() <= 0.03 * want.abs().max()


def with_lengthening(ops: Ops, is_fast: bool) -> Ops:
    """As on a processor that makes bfloat16 of short weights as fast as it reads them, or does not."""
    assert ops.packing is not None
    return replace(ops, packing=replace(ops.packing, lengthens=is_fast))


def test_bfloat16_is_short_where_that_is_fast(tmp_path: Path, ops: Ops) -> None:
    path = saved(tmp_path, "BF16")
    chosen = choose_form("auto", located(path), with_lengthening(ops, True))
    assert chosen.name == "short" and [one.value for one in chosen.chosen] == ["short"]
    assert set(types(load_model(open_source(path), ops, torch.float32, "cpu", form=chosen)).values()) == {
        SHORT_BFLOAT16
    }
    assert choose_form("auto", located(path), with_lengthening(ops, False)) is AS_STORED
    assert choose_form("short", located(path), with_lengthening(ops, False)).name == "short"


def test_bfloat16_beside_blocks_stays(tmp_path: Path, ops: Ops) -> None:
    model = located(saved(tmp_path, "Q4_1", wide=128, head="BF16"))
    assert choose_form("auto", model, with_lengthening(ops, True)).name in ("blocks", "rows")
    with pytest.raises(ConfigError, match="can be short bfloat16: it has no matrix of BF16"):
        choose_form("short", located(saved(tmp_path, "F16")), ops)


@pytest.mark.usefixtures("tiny_models_are_kept_too")
def test_a_weight_that_does_not_fit_stays_as_it_is_stored_in_memory_and_on_disk_and_it_is_told(
    tmp_path: Path, ops: Ops, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path, "BF16", wide=128, exponents_of_down=torch.arange(-100.0, 0.0))
    source, directory = open_source(path), tmp_path / "packed"
    form = choose_form("short", locate_weights(source), ops)
    assert ops.packing is not None
    for came in ("no packed file yet", " from "):
        packed = PackedOnDisk(directory, 1 << 30, source, ops.packing, form.name)
        decoder = load_model(source, ops, torch.float32, "cpu", packed=packed, form=form)
        packed.wait()
        assert types(decoder) == {"head": SHORT_BFLOAT16, "q": SHORT_BFLOAT16, "down": "BF16"}
        assert came in packed.state
        assert caplog.messages.pop().startswith("1 of 15 bfloat16 weights have too many exponents")


def test_logits_of_short_bfloat16_are_those_of_bfloat16(tmp_path: Path) -> None:
    path = saved(tmp_path, "BF16")
    short, stored = (loaded(path, kernels="native", form=form) for form in ("short", "blocks"))
    assert types(short) != types(stored)
    wanted, got = (generate(decoder, prompts((40, 7), vocab_size=101), 9) for decoder in (stored, short))
    for row, same in zip(wanted, got, strict=True):
        assert row.tokens == same.tokens and torch.equal(row.logits, same.logits)


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32", "Q4_1"])
def test_who_asks_for_int8_gets_bytes_of_floats_too(kind: str, tmp_path: Path, ops: Ops) -> None:
    path = saved(tmp_path, kind, wide=128)
    chosen = choose_form("int8", located(path), ops)
    assert chosen.name == "int8" and not chosen.chosen
    decoder = load_model(open_source(path), ops, torch.float32, "cpu", form=chosen)
    assert set(types(decoder).values()) == {BYTE_ROWS}


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32"])
def test_logits_of_int8_are_near_those_of_floats(kind: str, tmp_path: Path, ops: Ops) -> None:
    path = saved(tmp_path, kind)
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    rounded, stored = (loaded(path, kernels="native", form=form).lm_head for form in ("int8", "blocks"))
    want = ops.linear(x, stored, None)
    assert 0 < (ops.linear(x, rounded, None) - want).abs().max() <= 0.03 * want.abs().max()


def test_floats_that_cannot_be_int8_stay_and_that_is_told(tmp_path: Path, ops: Ops) -> None:
    """The down projections of this model have 96 columns."""
    path = saved(tmp_path, "BF16")
    chosen = choose_form("int8", located(path), ops)
    assert [one.value for one in chosen.chosen] == ["int8"]
    assert f"{2 * 128 * 96 * 2:,} of 2 that cannot be stay as they are stored" in chosen.chosen[0].reason
    decoder = load_model(open_source(path), ops, torch.float32, "cpu", form=chosen)
    assert types(decoder) == {"head": BYTE_ROWS, "q": BYTE_ROWS, "down": "BF16"}


def test_routers_and_experts_stay_what_they_are(tmp_path: Path, ops: Ops) -> None:
    config = MixtralConfig(
        vocab_size=101,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=128,
    )
    random_weights(MixtralForCausalLM(config)).to(torch.bfloat16).save_pretrained(tmp_path)
    decoder = loaded(tmp_path, kernels="native", form="int8")
    layer = decoder.layers[0]
    assert isinstance(layer.mlp, SparseMLP)
    weights = (layer.attention.qkv.weights[0], layer.mlp.experts.router, layer.mlp.experts.gate)
    assert [weight.type for weight in weights if isinstance(weight, PackedTensor)] == [BYTE_ROWS, "BF16", "BF16"]


def test_int8_that_cannot_be_is_refused_to_who_asks_for_it(tmp_path: Path, ops: Ops) -> None:
    model = located(saved(tmp_path, "BF16", hidden=96))
    with pytest.raises(ConfigError, match="can be int8: it has no matrix whose columns are a multiple of 64"):
        choose_form("int8", model, ops)
    assert choose_form("int8", model, ops, accepts_other=True).name == "blocks"


def started(path: Path, form: str) -> Report:
    core = EngineCore(
        EngineOptions(
            model=str(path),
            device="cpu",
            num_threads=1,
            skip_tokenizer_init=True,
            kv_cache_bytes=1 << 20,
            packed_cache_bytes=0,
            weight_form=form,  # type: ignore[arg-type]
        )
    )
    return core.card.report


def test_columns_that_are_no_multiple_of_64_stay_in_blocks_beside_rows(tmp_path: Path) -> None:
    """The down projection of this model has 96 columns."""
    decoder = loaded(saved(tmp_path, "Q4_1"), kernels="native", form="rows")
    assert types(decoder) == {"head": BYTE_ROWS, "q": BYTE_ROWS, "down": "Q4_1"}


@pytest.mark.parametrize(
    ("kind", "form", "told"),
    [
        ("Q4_1", "auto", ["mixed", "rows"]),
        ("Q4_1", "blocks", [None]),
        ("Q4_K", "units", [None]),
        ("BF16", "int8", [None]),
    ],
)
def test_a_start_plans_the_bytes_of_the_form_and_tells_its_choice(
    kind: str, form: str, told: list[str | None], tmp_path: Path
) -> None:
    """Which of two it is on its own depends on the processor."""
    report = started(saved(tmp_path, kind, hidden=256, wide=256, head="Q8_0"), form)
    (weights,) = (item for item in report.memory if item.what == WEIGHTS)
    assert weights.planned_bytes == weights.used_bytes
    values = [one.value for one in report.adjustments if one.option == "weight_form"]
    assert (values or [None])[0] in told and len(values) <= 1


@pytest.fixture
def tiny_models_are_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weights, "FEWEST_BYTES", 0)


def kept(path: Path, wish: FormWish, directory: Path, ops: Ops, room: int = 1 << 30) -> str:
    """What a start with weights of that form says of where they came from; what it keeps is written when it returns."""
    source = open_source(path)
    assert ops.packing is not None
    form = choose_form(wish, locate_weights(source), ops)
    packed = PackedOnDisk(directory, room, source, ops.packing, form.name)
    decoder = load_model(source, ops, torch.float32, "cpu", packed=packed, form=form)
    packed.wait()
    assert set(types(decoder).values()) == {{"rows": BYTE_ROWS, "units": "Q4_K_UNITS"}.get(wish, "Q4_1")}
    return packed.state


@pytest.mark.usefixtures("tiny_models_are_kept_too")
def test_each_form_is_packed_once_and_kept_beside_the_other(tmp_path: Path, ops: Ops) -> None:
    path, directory = saved(tmp_path, "Q4_1", wide=128), tmp_path / "packed"
    wishes: list[PackedForm] = ["rows", "blocks"]
    files = [packed_path(directory, path, form) for form in wishes]
    for wish in wishes:
        assert "no packed file yet" in kept(path, wish, directory, ops)
    for wish, file in zip(wishes, files, strict=True):
        assert kept(path, wish, directory, ops).endswith(f" from {file}")
    assert set(packed_files(directory, path)) == set(directory.iterdir()) == set(files)


@pytest.mark.usefixtures("tiny_models_are_kept_too")
def test_units_are_packed_once_and_kept(tmp_path: Path, ops: Ops) -> None:
    path, directory = saved(tmp_path, "Q4_K", hidden=256, wide=256), tmp_path / "packed"
    assert "no packed file yet" in kept(path, "units", directory, ops)
    assert kept(path, "units", directory, ops).endswith(f" from {packed_path(directory, path, 'units')}")


@pytest.mark.usefixtures("tiny_models_are_kept_too")
def test_a_file_of_the_other_form_under_a_forms_name_is_made_anew(tmp_path: Path, ops: Ops) -> None:
    path, directory = saved(tmp_path, "Q4_1", wide=128), tmp_path / "packed"
    kept(path, "rows", directory, ops)
    packed_path(directory, path, "rows").rename(packed_path(directory, path, "blocks"))
    assert "of another model or form" in kept(path, "blocks", directory, ops)
    assert " from " in kept(path, "blocks", directory, ops)


@pytest.mark.usefixtures("tiny_models_are_kept_too")
def test_a_changed_models_file_of_the_other_form_goes_too(tmp_path: Path, ops: Ops) -> None:
    path, directory = saved(tmp_path, "Q4_1", wide=128), tmp_path / "packed"
    kept(path, "rows", directory, ops)
    kept(path, "blocks", directory, ops)
    saved(tmp_path, "Q4_1", hidden=192, wide=128)
    assert "have changed" in kept(path, "blocks", directory, ops)
    assert packed_files(directory, path) == (packed_path(directory, path, "blocks"),)


@pytest.mark.usefixtures("tiny_models_are_kept_too")
def test_the_files_of_both_forms_count_for_the_room_that_packed_files_may_take(tmp_path: Path, ops: Ops) -> None:
    path, directory = saved(tmp_path, "Q4_1", wide=128), tmp_path / "packed"
    kept(path, "rows", directory, ops)
    rows = packed_path(directory, path, "rows")
    kept(path, "blocks", directory, ops, room=rows.stat().st_size + 1000)
    assert packed_files(directory, path) == (packed_path(directory, path, "blocks"),)


def test_logits_of_both_forms_are_near_each_other(tmp_path: Path, ops: Ops) -> None:
    path = saved(tmp_path, "Q8_0")
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    rows, blocks = (loaded(path, kernels="native", form=form).lm_head for form in ("rows", "blocks"))
    want = ops.linear(x, blocks, None)
    assert (ops.linear(x, rows, None) - want).abs().max() <= 0.03 * want.abs().max()
