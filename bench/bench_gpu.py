"""The engine on one NVIDIA GPU beside what vLLM reached on the same card (`gpu_workloads.py`).

    python bench/bench_gpu.py                          every model, every workload, one table
    python bench/bench_gpu.py --check                  first: is every kernel right on awkward shapes?
    python bench/bench_gpu.py --micro                  each kernel alone, how near it comes to the card's ceilings
    python bench/bench_gpu.py --profile                also where the time of a step goes, on the GPU and on the host

Needs torch, triton, numpy and msgspec; the engine's core runs in this process, or one process for each model.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import io
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_workloads import MODELS, Workload, anchor_seconds, workloads, write_config

SHARES = 12  # processes that check, or compile what --micro measures, side by side


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--micro", action="store_true")
    parser.add_argument("--parts", default="", help="of --micro: some of its parts, by name")
    parser.add_argument("--models", default=",".join(MODELS), help="some of them, or an empty string for none")
    parser.add_argument("--workloads", default="", help="some of them; default: all")
    parser.add_argument("--repeats", type=int, default=2, help="of each workload; the best counts")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--profiled", default="decode-1,decode-8,batch-256,prefill-8k", help="workloads, by name")
    parser.add_argument("--model-seconds", type=float, default=600, help="a model that takes longer is given up")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "bench_gpu.jsonl")
    parser.add_argument("--one-model", help=argparse.SUPPRESS)
    parser.add_argument("--compile-share", help=argparse.SUPPRESS)
    parser.add_argument("--check-share", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compile_share:
        compile_share(args.compile_share, args.parts)
        return 0
    if args.check_share:
        check_share(args.check_share)
        return 0
    if args.one_model:
        return run_model(args)
    good = check() if args.check else True
    for model in filter(None, args.models.split(",")):
        run_apart(["--one-model", model, *sys.argv[1:]], args.model_seconds)
    if args.out.exists():
        print_table([json.loads(line) for line in args.out.read_text().splitlines()])
    if args.micro:
        import gpu_kernels

        began = time.monotonic()
        in_shares("--compile-share", "--parts", args.parts)
        print(f"candidates compiled in {time.monotonic() - began:.0f} s", flush=True)
        gpu_kernels.micro(args.parts)
    return 0 if good else 1


def run_apart(arguments: list[str], seconds: float) -> None:
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        print(f"given up after {seconds} s")
        process.kill()
        process.wait()


def in_shares(flag: str, *arguments: str) -> list[str]:
    """What the processes wrote, each of which does its share of the work."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, __file__, flag, f"{i}/{SHARES}", *arguments] for i in range(SHARES)]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for command in commands]
    return [line for process in processes for line in process.communicate()[0].splitlines()]


def check() -> bool:
    import gpu_kernels

    began = time.monotonic()
    lines = in_shares("--check-share")
    found = [gpu_kernels.Checked(**json.loads(line)) for line in lines if line.startswith("{")]
    good = gpu_kernels.report_checks(found)
    print(f"{len(found)} cases checked in {time.monotonic() - began:.0f} s", flush=True)
    return good


def check_share(share: str) -> None:
    import gpu_kernels

    for entry in gpu_kernels.check(*map(int, share.split("/"))):
        print(json.dumps(dataclasses.asdict(entry)), flush=True)


def compile_share(share: str, parts: str) -> None:
    """Launches nothing: kernels that --micro would launch are compiled, a share of them in this process."""
    import gpu_kernels

    index, count = map(int, share.split("/"))
    gpu_kernels.compile_only(index, count, parts)


# --- one model


def run_model(args: argparse.Namespace) -> int:
    began = _process_start()
    from trivium.config.options import EngineOptions
    from trivium.engine.open_core import open_core
    from trivium.types.start_progress import StartProgress, StartStage

    model = args.one_model
    options = dict(pair.split("=", 1) for pair in args.option)
    values = {"max_num_seqs": 512, **{name: json.loads(value) for name, value in options.items()}}
    path = write_config(model, Path(tempfile.gettempdir()) / "shapes")
    imported = 0.0
    compiled: list[float] = []  # seconds of each kernel
    loaded: list[float] = []
    host = cProfile.Profile()

    def hear(progress: StartProgress) -> None:
        nonlocal imported
        if progress.stage is not StartStage.PLANNING:
            return
        imported = time.time()
        from triton import knobs

        knobs.compilation.listener = lambda times, cache_hit, **_: (loaded if cache_hit else compiled).append(
            times.total / 1e6
        )
        if args.profile:
            host.enable()

    core = open_core(
        EngineOptions(model=str(path), load_format="dummy", skip_tokenizer_init=True, device="cuda", **values),
        hear,
    )
    host.disable()
    started = time.time()
    print(f"=== {model}: ready after {started - began:.1f} s, {started - imported:.1f} of it without imports")
    happened = core.card.report.happened
    for passed in happened.start:
        print(f"   {passed.seconds:6.2f} s {passed.stage}")
    print(f"   {happened.compiled_ahead or 'nothing compiled ahead'}")
    print(
        f"   {len(compiled)} kernels compiled here in {sum(compiled):.2f} s (longest {max(compiled, default=0):.2f}), "
        f"{len(loaded)} taken from the cache in {sum(loaded):.2f} s"
    )
    for line in (core.card.graph, *core.card.kernels):
        print(f"   {line}")
    if args.profile:
        print("--- the start, host")
        print(_host_table(host, "cumulative", 45))
    record(args.out, model, "start", started - began)
    wanted = set(filter(None, args.workloads.split(",")))
    vocab_size = MODELS[model]["vocab_size"]
    for repeat in range(args.repeats):
        for workload in workloads(vocab_size, seed=repeat):
            if wanted and workload.name not in wanted:
                continue
            try:
                seconds, steps = run_workload(core, workload, f"{workload.name}/{repeat}")
            except Exception:
                traceback.print_exc()
                if repeat == 0:
                    continue
                return 1
            record(args.out, model, workload.name, seconds)
            ratio = seconds / anchor_seconds(workload.name, model)
            print(
                f"{model} {workload.name} #{repeat}: {seconds:.4f} s, {ratio:.2f} of the anchor, {steps} steps",
                flush=True,
            )
    print(f"   replayed {core._runner.graph.replayed}, eager {dict(core._runner.graph.eager)}")
    if args.profile:
        for name in filter(None, args.profiled.split(",")):
            try:
                profile(core, name, vocab_size)
            except Exception:
                traceback.print_exc()
    return 0


def _process_start() -> float:
    """Seconds of the wall clock at which this process began, to the hundredth."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def run_workload(core, workload: Workload, name: str) -> tuple[float, int]:
    """(seconds from the first request to the last token, steps)."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    submit(core, workload, name)
    steps = num_tokens = 0
    while core.has_work:
        for delta in core.step():
            num_tokens += len(delta.tokens)
            if delta.error:
                raise RuntimeError(delta.error)
        steps += 1
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    expected = len(workload.prompts) * workload.new_tokens
    if num_tokens != expected:
        raise RuntimeError(f"{num_tokens} tokens came, {expected} were asked for")
    return seconds, steps


def submit(core, workload: Workload, name: str) -> None:
    from trivium.types.request import Request, Sampling, Stopping

    for index, prompt in enumerate(workload.prompts):
        core.add(
            Request(
                id=f"{name}/{index}",
                prompt=tuple(prompt),
                sampling=Sampling(seed=0, temperature=0.0),
                stopping=Stopping(max_tokens=workload.new_tokens),
                arrival=time.monotonic(),
            )
        )


def record(out: Path, model: str, workload: str, seconds: float) -> None:
    with out.open("a") as file:
        file.write(json.dumps({"model": model, "workload": workload, "seconds": seconds}) + "\n")


def profile(core, name: str, vocab_size: int) -> None:
    """The kernels of some steps by their time, and what the host did in some others."""
    import torch

    workload = next(w for w in workloads(vocab_size, seed=77) if w.name == name)
    if name == "prefill-8k":
        print(f"--- {name}, kernels of all of it")
        print(_kernel_table(core, workload, f"profile/{name}", skip=0, steps=1))
        for length in (8191, 5003, 5003):
            other = dataclasses.replace(workload, prompts=[workload.prompts[0][-length:]])
            seconds, _ = run_workload(core, other, f"{length}/{time.monotonic()}")
            print(f"a prompt of {length} tokens: {seconds * 1e3:.1f} ms")
        again = next(w for w in workloads(vocab_size, seed=78) if w.name == name)
        host = cProfile.Profile()
        host.enable()
        seconds, _ = run_workload(core, again, f"host/{name}")
        host.disable()
        print(f"--- {name}, host, {seconds * 1e3:.1f} ms under the profiler")
        print(_host_table(host, "tottime", 25))
        return
    if len(workload.prompts) > 8:
        print(f"--- {name}, kernels of 12 steps after 2: prompts")
        print(_kernel_table(core, workload, f"prompts/{name}", skip=2, steps=12))
        workload = next(w for w in workloads(vocab_size, seed=76) if w.name == name)
    skip = 60 if len(workload.prompts) > 8 else 40
    print(f"--- {name}, kernels of 20 steps after {skip}")
    print(_kernel_table(core, workload, f"profile/{name}", skip, steps=20))
    submit(core, workload, f"host/{name}")
    for _ in range(skip):
        core.step()
    host = cProfile.Profile()
    began = time.perf_counter()
    host.enable()
    for _ in range(100):
        core.step()
    host.disable()
    print(f"--- {name}, host, 100 steps, {(time.perf_counter() - began) * 10:.2f} ms each under the profiler")
    print(_host_table(host, "tottime", 22))
    while core.has_work:
        core.step()
    torch.cuda.synchronize()


def _host_table(host: cProfile.Profile, order: str, count: int) -> str:
    text = io.StringIO()
    pstats.Stats(host, stream=text).sort_stats(order).print_stats(count)
    return "\n".join(line for line in text.getvalue().splitlines()[6:] if line.strip())


def _kernel_table(core, workload: Workload, name: str, skip: int, steps: int) -> str:
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    submit(core, workload, name)
    for _ in range(skip):
        core.step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    with torch_profile(activities=[ProfilerActivity.CUDA]) as traced:
        for _ in range(steps):
            core.step()
        torch.cuda.synchronize()
    wall = time.perf_counter() - began
    while core.has_work:
        core.step()
    rows = [
        (event.self_device_time_total, event.count, event.key)
        for event in traced.key_averages()
        if event.self_device_time_total > 0
    ]
    busy = sum(row[0] for row in rows) / 1e6
    lines = [f"wall {wall / steps * 1e3:.3f} ms a step, kernels {busy / steps * 1e3:.3f} ms, {busy / wall:.0%} busy"]
    for total, count, key in sorted(rows, reverse=True)[:22]:
        lines.append(f"{total / steps:10.1f} us a step {count / steps:7.1f} x {total / count:8.2f} us  {key[:90]}")
    return "\n".join(lines)


def print_table(records: list[dict]) -> None:
    best: dict[tuple[str, str], float] = {}
    for entry in records:
        key = (entry["workload"], entry["model"])
        best[key] = min(best.get(key, float("inf")), entry["seconds"])
    models = [model for model in MODELS if any(key[1] == model for key in best)]
    print("| seconds (of vLLM's) | " + " | ".join(models) + " |")
    print("|---|" + "---|" * len(models))
    for name in ["start", *(workload.name for workload in workloads(1000))]:
        cells = []
        for model in models:
            seconds = best.get((name, model))
            cells.append("–" if seconds is None else f"{seconds:.3f} ({seconds / anchor_seconds(name, model):.2f})")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(main())
