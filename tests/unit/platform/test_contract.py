"""The contract itself: its shape changes only with its version, and the CPU answers all of it."""

from pathlib import Path

import msgspec
import pytest
from contract_shape import first_shape, present_shape

from trivium.platform.contract import (
    CONTRACT_VERSION,
    PHASES,
    SERVED_VERSIONS,
    Answer,
    DeviceFacts,
    ImportedFacts,
    LoadFacts,
    Phase,
    Platform,
    RunningFacts,
    Source,
    StaticFacts,
    declared,
    unknown,
)
from trivium.platform.contract_v1 import VERSION as VERSION_1
from trivium.platform.cpu import CpuPlatform
from trivium.platform.cuda import CudaPlatform
from trivium.types.decisions import Refuse, Wish
from trivium.types.facts import ModelFacts

SHAPES = Path(__file__).parent / "contract_shapes"
MODEL = ModelFacts(windows=(None,), num_kv_heads=1, head_dim=8, max_position=64, checkpoint_dtype="float32")

# What one process on one machine has no use for.
UNKNOWN_TO_THE_CPU = {"compile", "collectives", "transfer", "telemetry"}


def test_the_shape_of_the_contract_changes_only_with_its_version() -> None:
    kept = (SHAPES / f"{CONTRACT_VERSION}.txt").read_text()
    assert present_shape() == kept, "what plugins see has changed: raise CONTRACT_VERSION, adapt the version before"


def test_the_version_before_keeps_its_shape() -> None:
    assert first_shape() == (SHAPES / f"{VERSION_1}.txt").read_text()
    assert SERVED_VERSIONS == (CONTRACT_VERSION - 1, CONTRACT_VERSION)


def test_a_field_that_is_taken_away_shows() -> None:
    lines = present_shape().splitlines()
    assert "Device.total_bytes: int" in lines
    assert any(line.startswith("Platform.negotiate(self, wish: 'Wish', model: 'ModelFacts')") for line in lines)


def test_unknown_counts_as_no() -> None:
    assert not unknown("nobody asked").is_yes
    assert declared(True, "seen").is_yes


def test_every_group_of_facts_has_a_phase_and_every_fact_is_an_answer() -> None:
    for facts, phase in PHASES.items():
        assert isinstance(phase, Phase)
        for field in msgspec.structs.fields(facts):
            assert "Answer[" in str(facts.__annotations__[field.name]), f"{facts.__name__}.{field.name}"


def all_facts(platform: Platform) -> list[StaticFacts | ImportedFacts | DeviceFacts | LoadFacts | RunningFacts]:
    return [
        platform.static(),
        platform.imported(),
        platform.probe(),
        platform.with_model(MODEL),
        platform.running(),
    ]


def test_the_cpu_answers_everything_with_a_source_and_a_reason() -> None:
    for facts in all_facts(CpuPlatform()):
        for name, answer in msgspec.structs.asdict(facts).items():
            assert isinstance(answer, Answer) and answer.reason and isinstance(answer.source, Source), name
            assert answer.value is not None or name in UNKNOWN_TO_THE_CPU, name


def test_answers_survive_the_way_between_processes() -> None:
    for facts in all_facts(CpuPlatform()):
        assert msgspec.json.decode(msgspec.json.encode(facts), type=type(facts)) == facts


def test_asking_the_gpu_platform_about_a_machine_without_one_breaks_nothing() -> None:
    platform = CudaPlatform()
    assert platform.static().identity.value.device_type == "cuda"
    assert platform.with_model(MODEL).limits.value.max_model_len == 64
    assert {check.state for check in platform.precheck()} <= {"ok", "warn", "fail"}


@pytest.mark.parametrize("platform", [CpuPlatform(), CudaPlatform()], ids=lambda platform: platform.name)
def test_negotiation_is_pure_and_keeps_what_can_be_kept(platform: Platform) -> None:
    wish = Wish()
    assert platform.negotiate(wish, MODEL) == platform.negotiate(wish, MODEL)
    assert not [decision for decision in platform.negotiate(wish, MODEL) if isinstance(decision, Refuse)]


def test_what_a_platform_refuses_names_the_number_and_the_remedy() -> None:
    (refusal,) = CpuPlatform().negotiate(Wish(num_threads=5000), MODEL)
    assert isinstance(refusal, Refuse)
    assert "5000" in refusal.reason and refusal.remedy
