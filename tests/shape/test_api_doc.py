"""docs/api.md names what the server has, and tests carry the numbers of the API contract's rules."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from msgspec import structs

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "serve"))

from fuzz_requests import BODIES, application_routes  # noqa: E402

DOC = (ROOT / "docs" / "api.md").read_text()
# How many rules each part of the contract has: transport, errors, chats, streams, logprobs, completions, responses, models and
# files, Anthropic, Ollama.
NUM_RULES = {"t": 12, "e": 12, "c": 24, "s": 13, "l": 6, "p": 6, "r": 10, "m": 7, "a": 11, "o": 10}
WITHOUT_A_TEST = {"m7"}


def test_every_route_is_in_the_documentation() -> None:
    shown = [path.replace(":path", "") for _, path in application_routes()]
    missing = [path for path in shown if not re.search(rf"`[A-Z]* ?(/v1)?{re.escape(path)}`", DOC)]
    assert not missing


def test_every_field_of_a_request_is_in_the_documentation() -> None:
    fields = {(body.__name__, field.encode_name) for body in BODIES.values() for field in structs.fields(body)}
    assert not sorted((body, name) for body, name in fields if f"`{name}`" not in DOC)


def test_every_rule_of_the_contract_has_a_test_that_carries_its_number() -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    names = [name for source in sources for name in re.findall(r"def (test_\w+)", source)]
    carried = {rule for name in names for rule in re.findall(r"(?<=_)[a-z]\d+(?=_)", name)}
    rules = {f"{part}{number}" for part, count in NUM_RULES.items() for number in range(1, count + 1)}
    assert rules - carried == WITHOUT_A_TEST
    assert all(f"**{rule.upper()}**" in DOC for rule in WITHOUT_A_TEST)
