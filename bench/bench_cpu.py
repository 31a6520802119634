"""The engine on a CPU beside its peers, workload by workload in turns, as ratios with their spread.

    python bench/bench_cpu.py                          all of it: workloads, start, shapes; needs an hour of a quiet machine
    python bench/bench_cpu.py --part workloads         the default model: a to d, peak memory
    python bench/bench_cpu.py --part start             process start to first token, the model cached
    python bench/bench_cpu.py --part shapes            larger shapes with random weights, beside llama.cpp and the memory
    python bench/bench_cpu.py --mask avx512            ours without AVX-512, beside llama.cpp built without it (amx: without AMX)
    python bench/bench_cpu.py --weight-form int8       ours with weights in a form that is not the default

Peers are those that `make bench-peers` could install. Every engine is a process of its own, stopped while others have
their turn. Tables go to the screen, every sample to --out.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import get_args

from cpu_report import OURS, Evidence, calm, describe_machine, table
from cpu_workloads import MEMORY, START, WORKLOADS
from engine_process import EngineCommand
from peer_catalog import DEFAULT_HOME, PEERS, SCRIPTS
from peer_forms import model_for
from shape_bench import ShapeBench
from shape_models import model_names
from turns import Turns

from trivium.models.weight_form import FormWish
from trivium.platform.cpu import usable_threads
from trivium.store import DEFAULT_MODEL, ModelStore

RESULTS = Path(__file__).resolve().parent / "results"
PARTS = ("workloads", "start", "shapes")
BEST_WITHOUT = {"amx": "avx512_bf16", "avx512": "avx2"}  # what is left of our instruction sets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--beside", nargs="+", help="default: every installed peer of the same mask")
    parser.add_argument("--workloads", default="abcd", help="letters of those to run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_threads()[0])
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: seconds of processor time, for a machine that others use too; says something with --threads 1",
    )
    parser.add_argument("--mask", choices=list(BEST_WITHOUT))
    parser.add_argument("--weight-form", choices=get_args(FormWish), help="of ours; default: what the engine takes")
    parser.add_argument(
        "--shapes", nargs="+", choices=model_names(), metavar="SHAPE", help=f"some of {', '.join(model_names())}"
    )
    parser.add_argument("--peers", type=Path, default=DEFAULT_HOME, help="where they are installed")
    parser.add_argument(
        "--preload",
        type=Path,
        help="a library that peers load before their own, such as one that answers what a virtual machine hides of AMX",
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu.json")
    args = parser.parse_args()
    parts = args.part or PARTS
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no engine is left behind
    evidence = Evidence(command=sys.argv, machine=describe_machine())
    commands = engine_commands(args, evidence)
    for name, why in evidence.absent.items():
        print(f"{name} is left out: {why}")
    turns = Turns(evidence, args.repeats, args.out)
    if "workloads" in parts:
        chosen = [workload for workload in WORKLOADS if workload.name[0] in args.workloads]
        turns.run(DEFAULT_MODEL, commands, chosen, MEMORY)
        print(table(evidence, DEFAULT_MODEL, [*chosen, MEMORY], list(commands)), flush=True)
    if "start" in parts:
        turns.run_starts(DEFAULT_MODEL, commands, START)
        print(table(evidence, DEFAULT_MODEL, [START], list(commands)), flush=True)
    if "shapes" in parts:
        shapes = ShapeBench(turns, args.threads, args.peers / "models")
        print(
            shapes.run({name: commands[name] for name in commands if name.startswith((OURS, "llama.cpp"))}, args.shapes)
        )
    print(f"{calm(evidence)}; every sample: {args.out}")
    return 0


def engine_commands(args: argparse.Namespace, evidence: Evidence) -> dict[str, EngineCommand]:
    gguf = ModelStore().resolve(DEFAULT_MODEL)
    settings = () if args.mask is None else (f"instruction_set={BEST_WITHOUT[args.mask]}",)
    if args.weight_form is not None:
        settings += (f"weight_form={args.weight_form}",)
    script = SCRIPTS / "run_trivium.py"
    commands = {OURS: EngineCommand(OURS, Path(sys.executable), script, gguf, args.threads, args.clock, settings)}
    for peer in PEERS:
        is_wanted = peer.name in args.beside if args.beside else peer.mask == args.mask
        if not is_wanted:
            continue
        if not peer.is_installed(args.peers):
            evidence.absent[peer.name] = "not installed (make bench-peers)"
            continue
        script, python = SCRIPTS / peer.script, peer.python(args.peers)
        model = model_for(peer, args.peers, gguf)
        commands[peer.name] = EngineCommand(
            peer.name, python, script, model, args.threads, args.clock, skips=peer.skips, preload=args.preload
        )
    return commands


if __name__ == "__main__":
    sys.exit(main())
