"""An engine for commands that answer in the terminal: started, asked, and closed from ordinary code."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import msgspec

from trivium.commands.model import stored_model
from trivium.commands.options import read_options
from trivium.commands.settings import SamplingSettings
from trivium.config.options import EngineOptions
from trivium.llm.async_llm import AsyncLLM
from trivium.llm.outputs import RequestOutput
from trivium.llm.params import SamplingParams


class TerminalEngine:
    """While an answer is written, Ctrl-C ends the answer and raises KeyboardInterrupt here."""

    def __init__(self, llm: AsyncLLM, sampling: SamplingParams, runner: asyncio.Runner) -> None:
        self.llm = llm
        self.sampling = sampling
        self._runner = runner

    def write(self, outputs: AsyncIterator[RequestOutput], on_text: Callable[[str], None]) -> None:
        self._runner.run(_write(outputs, on_text))


async def _write(outputs: AsyncIterator[RequestOutput], on_text: Callable[[str], None]) -> None:
    async for output in outputs:
        if text := output.outputs[0].delta.text:
            on_text(text)


@contextmanager
def terminal_engine(args: argparse.Namespace) -> Iterator[TerminalEngine]:
    sampling = SamplingParams(**msgspec.structs.asdict(read_options(args, SamplingSettings)))
    model = stored_model(args.model)
    options = read_options(args, EngineOptions, model=model)
    if sys.stderr.isatty():
        print(f"loading {model} …", end="", file=sys.stderr, flush=True)
    llm = AsyncLLM(**msgspec.structs.asdict(options))
    with asyncio.Runner() as runner:
        try:
            runner.run(llm.start())
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr, flush=True)
            yield TerminalEngine(llm, sampling, runner)
        finally:
            runner.run(llm.close())


def print_text(text: str) -> None:
    print(text, end="", flush=True)
