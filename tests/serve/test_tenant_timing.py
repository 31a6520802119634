"""How fast an answer begins tells a tenant nothing of what another has asked. One holder of a key asks for a long prompt, or for
another one; then somebody sends that prompt, and guesses from the clock which it was. `make test-soak`; TENANT_PROBES says how
many guesses of each kind. The area under the curve (AUC) is the chance that of one probe of each kind the faster is the one that
was asked before: 0.5 is blind guessing."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import httpx
import pytest
from server_process import ServerProcess
from tiny_model import MODEL

# With n probes of each kind blind guessing strays from 0.5 by 0.41 / sqrt(n): 0.05 is about four times that for 1,000.
TENANT_PROBES = int(os.environ.get("TENANT_PROBES", "1000"))
PROMPT_TOKENS = 2000
BLIND, SURE = 0.55, 0.95
ONE, OTHER = "the-key-of-one", "the-key-of-another"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300 + 2 * TENANT_PROBES)]


def auc(hits: list[float], misses: list[float]) -> float:
    """The chance that a hit is faster than a miss; ties count half."""
    ranked = sorted(
        [(seconds, 1) for seconds in hits] + [(seconds, 0) for seconds in misses], key=lambda pair: -pair[0]
    )
    slower = 0
    won = 0.0
    for _, is_hit in ranked:
        if is_hit:
            won += slower
        else:
            slower += 1
    return won / (len(hits) * len(misses))


def guesses(server: ServerProcess, warms: str, probes: str, count: int) -> float:
    """The AUC of who has the key `probes`, over what was asked with the key `warms`."""
    rng = random.Random(count)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with httpx.Client(base_url=server.url, timeout=60) as http:

        def ask(key: str, prompt: list[int]) -> float:
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
            began = time.perf_counter()
            answer = http.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 200, answer.text
            return time.perf_counter() - began

        for was_asked in rng.sample([True, False] * count, 2 * count):
            prompt, another = ([rng.randrange(3, 300) for _ in range(PROMPT_TOKENS)] for _ in range(2))
            ask(warms, prompt if was_asked else another)
            seconds[was_asked].append(ask(probes, prompt))
    return auc(seconds[True], seconds[False])


def measured(tiny_model: Path, *options: str, warms: str, probes: str, count: int) -> float:
    keys = ("--api-key", ONE, "--api-key", OTHER)
    server = ServerProcess(str(tiny_model), "--served-model-name", MODEL, *keys, *options, headers=_key(ONE))
    try:
        return guesses(server, warms, probes, count)
    finally:
        assert server.stop() == 0


def _key(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_another_tenants_prompts_cannot_be_told_by_the_clock(tiny_model: Path) -> None:
    found = measured(tiny_model, warms=ONE, probes=OTHER, count=TENANT_PROBES)
    print(f"\ntenants: AUC {found:.3f} across keys, over {2 * TENANT_PROBES} probes")
    assert 1 - BLIND <= found <= BLIND


def test_ones_own_prompts_are_faster_the_second_time(tiny_model: Path) -> None:
    found = measured(tiny_model, warms=ONE, probes=ONE, count=100)
    print(f"\ntenants: AUC {found:.3f} with one key, over 200 probes")
    assert found >= SURE


def test_the_clock_would_tell_where_prefixes_are_shared(tiny_model: Path) -> None:
    """So the measurement above sees what there is to see."""
    found = measured(tiny_model, "--share-prefixes", warms=ONE, probes=OTHER, count=100)
    print(f"\ntenants: AUC {found:.3f} across keys with --share-prefixes, over 200 probes")
    assert found > 0.9
