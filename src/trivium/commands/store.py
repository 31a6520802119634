"""`trivium pull`, `list`, `show` and `rm`: the models on this machine."""

from __future__ import annotations

import argparse

from trivium.commands.pull_bar import PullBar
from trivium.store import DEFAULT_MODEL, ModelStore


def run(args: argparse.Namespace) -> int:
    commands = {"pull": _pull, "list": _list, "show": _show, "rm": _remove}
    commands[args.command](ModelStore(), args)
    return 0


def _pull(store: ModelStore, args: argparse.Namespace) -> None:
    with PullBar() as bar:
        stored = store.pull(args.model or DEFAULT_MODEL, name=args.name, copy=args.copy, progress=bar)
    print(f"{stored.name}: {readable_bytes(stored.manifest.size)}, {stored.path}")


def _list(store: ModelStore, args: argparse.Namespace) -> None:
    models = store.list()
    if not models:
        print("nothing is stored yet; `trivium pull` fetches the default model")
        return
    width = max(len(model.name) for model in models)
    for model in models:
        manifest = model.manifest
        problem = model.problem()
        state = manifest.created[:10] if problem is None else f"damaged: {problem}"
        print(f"{model.name:<{width}}  {readable_bytes(manifest.size):>9}  {manifest.format:<11}  {state}")


def _show(store: ModelStore, args: argparse.Namespace) -> None:
    summary = store.show(args.model)
    for label, value in (
        ("name", summary.name),
        ("source", summary.source),
        ("created", summary.created),
        ("path", summary.path),
        ("format", summary.format),
        ("architecture", summary.architecture),
        ("parameters", f"{summary.parameters:,}"),
        ("quantization", summary.quantization),
        ("size", readable_bytes(summary.size)),
        *(("packed", f"{readable_bytes(path.stat().st_size)}, {path}") for path in summary.packed),
        ("context", f"{summary.context_length} tokens" if summary.context_length else None),
        ("embedding", summary.embedding_length),
        ("chat template", "yes" if summary.has_chat_template else "no"),
    ):
        if value is not None:
            print(f"{label:<14}{value}")


def _remove(store: ModelStore, args: argparse.Namespace) -> None:
    store.rm(args.model)
    print(f"{args.model}: removed")


def readable_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
