"""Holds a platform to the contract: what it must answer, that it answers alike each time, and that its wishes make sense.

    python -m trivium.platform.conformance NAME

The ops that a platform brings are held to the reference at every start (`kernels/verify.py`); here it is the answers.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trivium.platform.contract import PHASES, Answer, Detection, Platform, Source, Versions
from trivium.platform.plausible import what_is_impossible
from trivium.types.checks import Check
from trivium.types.decisions import Adjust, Keep, Refuse, Wish
from trivium.types.facts import ModelFacts

SMALL = ModelFacts(windows=(None,) * 2, num_kv_heads=2, head_dim=64, max_position=2048, checkpoint_dtype="float32")
SLIDING = ModelFacts(windows=(512, None), num_kv_heads=1, head_dim=20, max_position=131072, checkpoint_dtype="bfloat16")


def conformance(platform: Platform) -> tuple[Check, ...]:
    return tuple(itertools.chain(_answers(platform), _capabilities(platform), _prechecks(platform), _wishes(platform)))


def _check(name: str, holds: bool, measured: str, wanted: str) -> Check:
    return Check(name, "ok" if holds else "fail", measured, wanted, "" if holds else "see docs/platform-plugins.md")


def _tried(name: str, look: Callable[[], tuple[bool, str]], wanted: str) -> Check:
    try:
        holds, measured = look()
    except Exception as error:
        return _check(name, False, f"{type(error).__name__}: {error}", wanted)
    return _check(name, holds, measured, wanted)


def _answers(platform: Platform) -> Iterator[Check]:
    groups: list[tuple[str, Callable[[], Any]]] = [
        ("static", platform.static),
        ("imported", platform.imported),
        ("probe", platform.probe),
        ("with_model", lambda: platform.with_model(SMALL)),
        ("running", platform.running),
    ]
    for name, ask in groups:
        facts = ask()
        yield _check(name, type(facts) in PHASES, type(facts).__name__, "a group of facts of the contract")
        yield _tried(f"{name} travels", partial(_travels, facts), "the same after a way as JSON")
        if name != "probe":  # what is free changes
            yield _check(f"{name} again", ask() == facts, "asked twice", "the same answers")
        for field, answer in msgspec.structs.asdict(facts).items():
            is_answer = isinstance(answer, Answer)
            yield _check(f"{name}.{field}", is_answer, type(answer).__name__, "an Answer")
            if is_answer:
                yield _check(f"{name}.{field} reason", bool(answer.reason), answer.reason, "a reason")
                yield _check(
                    f"{name}.{field} source", isinstance(answer.source, Source), str(answer.source), "a source"
                )
    first, second = platform.detect(), platform.detect()
    yield _check("detect", isinstance(first, Detection) and bool(first.reason), str(first), "a state with a reason")
    yield _check("detect again", first == second, str(second), "the same")
    versions = platform.static().versions.value
    yield _check("versions", isinstance(versions, Versions), str(versions), "the versions of contract, plugin and core")


def _travels(facts: Struct) -> tuple[bool, str]:
    return msgspec.json.decode(msgspec.json.encode(facts), type=type(facts)) == facts, "as JSON"


def _capabilities(platform: Platform) -> Iterator[Check]:
    capabilities = platform.capabilities()
    impossible = what_is_impossible(capabilities)
    yield _check("capabilities", impossible is None, impossible or "plausible", "possible numbers")
    yield _check("platform name", capabilities.platform == platform.name, capabilities.platform, platform.name)
    identity, dtypes = platform.static().identity.value, platform.imported().dtypes.value
    if identity is not None:
        found = capabilities.device.partition(":")[0]
        yield _check("device type", found == identity.device_type, found, identity.device_type)
    if dtypes is not None:
        yield _check("dtypes", dtypes.compute == capabilities.dtypes, str(capabilities.dtypes), str(dtypes.compute))


def _prechecks(platform: Platform) -> Iterator[Check]:
    found = platform.precheck()
    names = [check.name for check in found]
    yield _check("precheck names", len(set(names)) == len(names), ", ".join(names), "each once")
    for check in found:
        told = check.state == "ok" or bool(check.remedy)
        yield _check(f"precheck {check.name}", told, check.remedy or check.state, "a remedy for what is not fine")


def _wishes(platform: Platform) -> Iterator[Check]:
    """Over many wishes: decisions are pure, about the wish itself, and hold once they were followed."""
    for dtype, kv, block, length, model in itertools.product(
        ("auto", "float32", "bfloat16", "float16"),
        ("auto", "float32", "int8"),
        (1, 7, 16, 32, 128),
        (None, 100),
        (SMALL, SLIDING),
    ):
        wish = Wish(dtype=dtype, kv_cache_dtype=kv, block_size=block, max_model_len=length)
        name = f"negotiate {dtype}, {kv}, {block}, {length}, heads of {model.head_dim}"
        yield _tried(name, partial(_is_sensible, platform, wish, model), "pure, about the wish, and kept once followed")


def _is_sensible(platform: Platform, wish: Wish, model: ModelFacts) -> tuple[bool, str]:
    decisions = platform.negotiate(wish, model)
    if platform.negotiate(wish, model) != decisions:
        return False, "other decisions when asked again"
    followed = wish
    for decision in decisions:
        match decision:
            case Keep(option) if option in Wish.__struct_fields__:
                pass
            case Adjust(option, old, new, reason) if option in Wish.__struct_fields__:
                if old != getattr(wish, option) or new == old or not reason:
                    return False, f"an adjustment of {option} from {old!r} to {new!r}"
                followed = replace(followed, **{option: new})
            case Refuse(option, reason, remedy):
                return bool(reason and remedy), f"refused: {reason}: {remedy}"
            case _:
                return False, f"a decision that is none: {decision!r}"
    again = [one for one in platform.negotiate(followed, model) if not isinstance(one, Keep)]
    return not again, f"{len(decisions)} decisions" if not again else f"once followed, it wants {again[0]}"


def main(name: str) -> int:
    from trivium.platform.select import load_platform

    checks = conformance(load_platform(name))
    for check in checks:
        if check.state != "ok":
            print(f"FAIL {check.name}: {check.measured} (wanted: {check.wanted})")
    print(f"{sum(check.state == 'ok' for check in checks)} of {len(checks)} checks hold for {name}")
    return 0 if all(check.state == "ok" for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
