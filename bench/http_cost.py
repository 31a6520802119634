"""What HTTP costs: many streams of short answers from `trivium serve`, against the same engine asked from inside a program.

    python bench/http_cost.py [--model smollm2] [--streams 64] [--requests 256] [--new 32] [--rounds 5] [--num-threads N]

Both sides have an engine of the same options. They take turns, so that a busy machine disturbs both alike; the figure is
the ratio of the medians. The client of the HTTP side reads bytes and no more: it must not be what is measured. Leave the
API process a core: --num-threads is the engine's, and is one less than the machine has unless given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from trivium.llm.async_llm import AsyncLLM
from trivium.llm.params import SamplingParams

READY = re.compile(r"^ready +http://127\.0\.0\.1:(\d+)")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

Ask = Callable[[int], Awaitable[None]]  # one request, by its number, to the end of its answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=64, help="requests under way at once")
    parser.add_argument("--requests", type=int, default=256, help="of one round")
    parser.add_argument("--new", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-threads", type=int, default=max(len(os.sched_getaffinity(0)) - 1, 1))
    args = parser.parse_args()
    asyncio.run(compare(args))


async def compare(args: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {"inside": [], "http": []}
    cpu: dict[str, list[float]] = {"program": [], "api": [], "engine": []}  # seconds of a round
    async with in_program(args) as inside, Server(args) as server:
        sides: dict[str, Ask] = {"inside": inside, "http": server.ask}
        for number in range(-1, args.rounds):  # the first warms up
            for name, ask in sides.items():
                before = time.perf_counter(), time.process_time(), *server.cpu()
                await run(ask, args.requests, args.streams)
                after = time.perf_counter(), time.process_time(), *server.cpu()
                seconds, program, api, engine = (end - begin for begin, end in zip(before, after, strict=True))
                if number >= 0:
                    rates[name].append(args.requests * args.new / seconds)
                    if name == "inside":
                        cpu["program"].append(program)
                    else:
                        cpu["api"].append(api)
                        cpu["engine"].append(engine)
    report(args, rates, {name: min(values) / (args.requests * args.new) for name, values in cpu.items()})


def report(args: argparse.Namespace, rates: dict[str, list[float]], cpu: dict[str, float]) -> None:
    """`cpu`: seconds a token."""
    inside, http = (statistics.median(rates[name]) for name in ("inside", "http"))
    print(
        f"{args.streams} streams, {args.new} new tokens each, engine on {args.num_threads} threads,"
        f" medians of {args.rounds} rounds"
    )
    print("| asked | tokens/s | rounds |")
    print("|---|---|---|")
    for name, label in (("inside", "from inside a program"), ("http", "over HTTP")):
        shown = " ".join(f"{rate:.0f}" for rate in rates[name])
        print(f"| {label} | {statistics.median(rates[name]):.0f} | {shown} |")
    pairs = [over / within for within, over in zip(rates["inside"], rates["http"], strict=True)]
    print(
        f"HTTP costs {1 - http / inside:.1%} of the throughput (by pairs of rounds: {1 - statistics.median(pairs):.1%})"
    )
    print(
        f"CPU time a token, in the best round: engine {cpu['engine'] * 1e6:.0f} µs, API process {cpu['api'] * 1e6:.0f} µs"
        f" (the program without HTTP: {cpu['program'] * 1e6:.0f} µs)"
    )
    whole = cpu["engine"] + cpu["program"]
    print(f"where no core is free, that is {1 - whole / (cpu['engine'] + cpu['api']):.1%}")


async def run(ask: Ask, count: int, at_once: int) -> None:
    left: Iterator[int] = iter(range(count))

    async def work() -> None:
        for number in left:
            await ask(number)

    await asyncio.gather(*(work() for _ in range(at_once)))


def question(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Tell me something about the number {number}."}]


@asynccontextmanager
async def in_program(args: argparse.Namespace) -> AsyncIterator[Ask]:
    async with AsyncLLM(args.model, num_threads=args.num_threads) as llm:

        async def ask(number: int) -> None:
            params = SamplingParams(max_tokens=args.new, temperature=0, ignore_eos=True)
            async for output in llm.chat(question(number), params):
                last = output
            assert len(last.outputs[0].token_ids) == args.new

        yield ask


class Server:
    """`trivium serve`, and a client that only looks for the end of each answer."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._new = args.new
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        command = [sys.executable, "-m", "trivium", "serve", args.model, "--port", "0"]
        self._process = subprocess.Popen(
            [*command, "--num-threads", str(args.num_threads)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    async def __aenter__(self) -> Server:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := READY.match(line):
                self._port = int(found[1])
                return self
        raise SystemExit("the server did not start")

    async def __aexit__(self, *_: object) -> None:
        for _, writer in self._idle:
            writer.close()
        self._process.terminate()
        self._process.communicate()

    def cpu(self) -> tuple[float, float]:
        """Seconds that the API process and the engine's have computed."""
        children = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        engines = {int(pid) for path in children for pid in path.read_text().split()}
        return _cpu_seconds(self._process.pid), sum(map(_cpu_seconds, engines))

    async def ask(self, number: int) -> None:
        body = json.dumps(
            {
                "messages": question(number),
                "max_tokens": self._new,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(head % len(body) + body)
        try:
            await reader.readuntil(b"[DONE]\n\n\r\n0\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise RuntimeError(f"the server did not answer as it should: {error.partial[:500]!r}") from None
        self._idle.append((reader, writer))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


if __name__ == "__main__":
    main()
