"""Shapes of larger models with random weights: decoding beside llama.cpp and beside the memory's rate, and prefill."""

from __future__ import annotations

import dataclasses
import statistics
from functools import partial
from pathlib import Path

from cpu_report import OURS, ratios, shown
from cpu_workloads import SHAPE_DECODE, SHAPE_PREFILL, Workload
from engine_process import EngineCommand
from memory_bandwidth import read_bandwidth
from shape_models import MIXTURES, SHAPES, bytes_for_a_token, model_name, write_shape_model
from turns import Turns

LEAST_SHARE_OF_BANDWIDTH = 0.75


def _on(command: EngineCommand, model: Path) -> EngineCommand:
    """Ours keeps nothing on disk of a model that is started once."""
    own = ("packed_cache_bytes=0",) if command.name == OURS else ()
    return dataclasses.replace(command, model=model, settings=(*command.settings, *own))


class ShapeBench:
    def __init__(self, turns: Turns, threads: int, folder: Path) -> None:
        self._turns = turns
        self._evidence = turns.evidence
        self._threads = threads
        self._folder = folder

    def run(self, commands: dict[str, EngineCommand], chosen: list[str] | None) -> str:
        """A table; `chosen`: names of models; None: all."""
        lines = [
            "| model | decode, tokens/s | llama.cpp | ratio (min to max), must "
            f"{SHAPE_DECODE.must.times} | GB/s of weights, of the memory's, must {LEAST_SHARE_OF_BANDWIDTH:.0%} "
            f"| prefill of 512, tokens/s | llama.cpp | ratio (min to max), must {SHAPE_PREFILL.must.times} |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for shape in SHAPES:
            for mixture in MIXTURES:
                name = model_name(shape, mixture)
                if chosen and name not in chosen:
                    continue
                path = write_shape_model(shape, mixture, self._folder)
                weight_bytes = bytes_for_a_token(shape, mixture)
                self._turns.run(
                    name,
                    {engine: _on(command, path) for engine, command in commands.items()},
                    [SHAPE_DECODE, SHAPE_PREFILL],
                    read_memory=partial(read_bandwidth, weight_bytes, self._threads, self._folder),
                )
                lines.append(self._line(name, weight_bytes, [engine for engine in commands if engine != OURS]))
                print(lines[-1], flush=True)
        return "\n".join(lines)

    def _line(self, model: str, weight_bytes: int, peers: list[str]) -> str:
        samples = [s for s in self._evidence.of(model, SHAPE_DECODE, OURS) if s.memory]
        reading = "–"
        if samples:
            ours = statistics.median(s.value for s in samples) * weight_bytes
            memory = statistics.median(s.memory for s in samples)
            shares = sorted(s.value * weight_bytes / s.memory for s in samples)
            reading = f"{ours / 1e9:.1f} of {memory / 1e9:.1f}, {statistics.median(shares):.0%} ({shares[0]:.0%} to {shares[-1]:.0%})"
        decode, prefill = self._cells(model, SHAPE_DECODE, peers), self._cells(model, SHAPE_PREFILL, peers)
        return f"| {model} | {decode} | {reading} | {prefill} |"

    def _cells(self, model: str, workload: Workload, peers: list[str]) -> str:
        medians = [self._evidence.median(model, workload, engine) for engine in (OURS, *peers[:1])]
        cells = ["–" if median is None else shown(median) for median in medians]
        found = ratios(self._evidence, model, workload, peers)
        if found is None:
            return " | ".join([*cells, "–"])
        each = sorted(found[1])
        return " | ".join([*cells, f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"])
