"""Engines take turns: a workload once by each, then again, so that what else the machine does meets all of them alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cpu_report import OURS, Evidence, Sample
from cpu_workloads import CAPITAL, Workload
from engine_process import EngineCommand, EngineError, EngineProcess, MachineClock


class Turns:
    def __init__(self, evidence: Evidence, repeats: int, out: Path) -> None:
        self.evidence = evidence
        self._repeats = repeats
        self._out = out
        self._draw = random.Random()

    def run(
        self,
        model: str,
        commands: dict[str, EngineCommand],
        workloads: list[Workload],
        last: Workload | None = None,
        read_memory: Callable[[], float] | None = None,
    ) -> None:
        """`last` is measured once, when all others have run. The first turn of a workload warms up and is not recorded.
        `read_memory`: bytes a second, asked for before and after each turn of ours: a host may change it within minutes."""
        with self._started(commands) as engines:
            for engine in engines:
                with self._turn(engine):
                    self.evidence.first_words[f"{model}: {engine.name}"] = engine.generate([CAPITAL], 16)[1][0]
            for workload in workloads:
                for repeat in range(-1, self._repeats):
                    for engine in engines:
                        self._measure(model, workload, engine, repeat, read_memory if engine.name == OURS else None)
            for engine in engines if last else ():
                self._measure(model, last, engine, 0)

    def run_starts(self, model: str, commands: dict[str, EngineCommand], workload: Workload) -> None:
        """A fresh process for each sample."""
        for repeat in range(-1, self._repeats):
            for name, command in commands.items():
                with self._started({name: command}) as engines:
                    for engine in engines:
                        self._measure(model, workload, engine, repeat)

    def _measure(
        self,
        model: str,
        workload: Workload,
        engine: EngineProcess,
        repeat: int,
        read_memory: Callable[[], float] | None = None,
    ) -> None:
        if engine.has_failed or workload.name[0] in engine.skips:
            return
        before = read_memory() if read_memory else None
        value = others = None
        with self._turn(engine):
            clock = MachineClock(engine)
            value = workload.measure(engine, self._draw)
            others = clock.share_of_others()
        if repeat >= 0 and value is not None and others is not None:
            memory = (before + read_memory()) / 2 if before and read_memory else None
            self.evidence.samples.append(Sample(model, workload.name, engine.name, repeat, value, others, memory))
            self.evidence.write(self._out)

    @contextmanager
    def _turn(self, engine: EngineProcess) -> Iterator[None]:
        engine.resume()
        try:
            yield
        except EngineError as error:
            self._leave_out(engine.name, error)
        finally:
            engine.pause()

    @contextmanager
    def _started(self, commands: dict[str, EngineCommand]) -> Iterator[list[EngineProcess]]:
        """Those that start, paused while the next one does. What fails is said and left out."""
        self._out.parent.mkdir(parents=True, exist_ok=True)
        engines: list[EngineProcess] = []
        try:
            for command in commands.values():
                for engine in engines:
                    engine.pause()
                try:
                    engines.append(EngineProcess(command, self._out.parent / f"{command.name}.log"))
                except EngineError as error:
                    self._leave_out(command.name, error)
                else:
                    self.evidence.engines[command.name] = engines[-1].about
            yield engines
        finally:
            for engine in engines:
                engine.close()

    def _leave_out(self, name: str, error: EngineError) -> None:
        print(error, flush=True)
        self.evidence.absent[name] = str(error)
