"""How prefill work falls with the length that prompts share, and memory per sequence with `n`.

    python bench/prefix_sharing.py [--model smollm2] [--requests 16] [--prompt 512] [--new 16]

Prompts are random token ids, new for each row of the table, so that nothing is reused but what the row is about. The
work is counted (tokens computed, blocks held); times are medians and belong to the machine they were taken on.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.store import ModelStore
from trivium.types.request import Request, Sampling, Stopping


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=512, help="tokens in each prompt")
    parser.add_argument("--new", type=int, default=16, help="tokens generated for each")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kernels", default="auto")
    args = parser.parse_args()
    core = EngineCore(EngineOptions(model=str(ModelStore().resolve(args.model)), kernels=args.kernels))

    print(f"{args.requests} requests one after the other, {args.prompt} prompt tokens each, {args.new} new")
    print("| shared tokens | prompt tokens computed | of all | time, s | against none shared |")
    print("|---|---|---|---|---|")
    baseline = None
    for shared in (0, args.prompt // 4, args.prompt // 2, args.prompt * 3 // 4, args.prompt - 16):
        samples = [sharing_run(core, args.requests, args.prompt, shared, args.new) for _ in range(args.repeats)]
        computed = samples[0][0]
        seconds = statistics.median(sample[1] for sample in samples)
        baseline = baseline or seconds
        total = args.requests * args.prompt
        print(f"| {shared} | {computed} | {computed / total:.0%} | {seconds:.2f} | {seconds / baseline:.2f} |")

    print()
    print("requests that come at once, 1,024 tokens shared, 32 of their own and 32 new each")
    print("| requests | prompt tokens computed | of all | time, s |")
    print("|---|---|---|---|")
    for requests in (1, 8, 32):
        samples = [crowd_run(core, requests, 1024, 32, 32) for _ in range(args.repeats)]
        seconds = statistics.median(sample[1] for sample in samples)
        print(f"| {requests} | {samples[0][0]} | {samples[0][0] / (requests * 1056):.0%} | {seconds:.2f} |")

    print()
    print(f"one request of {args.prompt} prompt tokens and n sequences of {args.new} new")
    print("| n | most blocks held | blocks per sequence | against n = 1 |")
    print("|---|---|---|---|")
    single = None
    for n in (1, 2, 4, 8, 16):
        held = forking_run(core, args.prompt, n, args.new)
        single = single or held
        print(f"| {n} | {held} | {held / n:.1f} | {held / n / single:.2f} |")


def sharing_run(core: EngineCore, requests: int, prompt: int, shared: int, new: int) -> tuple[int, float]:
    """(prompt tokens computed, seconds)."""
    prefix = random_tokens(core, shared)
    before = core.stats()
    started = time.perf_counter()
    for _ in range(requests):
        for _ in run(core, prefix + random_tokens(core, prompt - shared), 1, new):
            pass
    seconds = time.perf_counter() - started
    after = core.stats()
    cached = after.cached_tokens - before.cached_tokens
    return requests * prompt - cached, seconds


def crowd_run(core: EngineCore, requests: int, shared: int, own: int, new: int) -> tuple[int, float]:
    """(prompt tokens computed, seconds)."""
    prefix = random_tokens(core, shared)
    before = core.stats().cached_tokens
    started = time.perf_counter()
    for _ in range(requests):
        submit(core, prefix + random_tokens(core, own), 1, new)
    while core.has_work:
        core.step()
    seconds = time.perf_counter() - started
    return requests * (shared + own) - (core.stats().cached_tokens - before), seconds


def forking_run(core: EngineCore, prompt: int, n: int, new: int) -> int:
    """Most blocks held at once."""
    return max(core.stats().held_blocks for _ in run(core, random_tokens(core, prompt), n, new))


def run(core: EngineCore, tokens: tuple[int, ...], n: int, new: int) -> Iterator[None]:
    """One turn for each step until the request has ended."""
    submit(core, tokens, n, new)
    while core.has_work:
        core.step()
        yield


def submit(core: EngineCore, tokens: tuple[int, ...], n: int, new: int) -> None:
    core.add(
        Request(
            id=f"bench-{random.getrandbits(64):x}",
            prompt=tokens,
            sampling=Sampling(seed=random.getrandbits(63)),
            stopping=Stopping(max_tokens=new),
            arrival=time.monotonic(),
            n=n,
        )
    )


def random_tokens(core: EngineCore, count: int) -> tuple[int, ...]:
    return tuple(random.randrange(1000, core.card.vocab_size - 1000) for _ in range(count))


if __name__ == "__main__":
    main()
