"""Vectors of texts by the engine and by `transformers`, in turns on the same weights and tokens.

    python bench/bench_embeddings.py                       MiniLM, one thread
    python bench/bench_embeddings.py --model PATH --threads 2

`transformers` is given what sentence-transformers does: texts sorted by length, padded in batches of 32, fused attention,
the mean of the states. Times are the least of many turns: with one thread of processor time, which other processes
disturb little, with more of the clock on the wall. The engine's include its scheduler; tokenizing is in neither.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import AutoModel

from trivium.config.options import EngineOptions
from trivium.engine.encoder_core import EncoderCore
from trivium.engine.open_core import open_core
from trivium.store import ModelStore
from trivium.types.request import Request, Sampling, Stopping

BATCH = 32
CLOSE = 1e-4  # elements of vectors of norm 1 may differ by

# (texts, fewest and most tokens of one)
WORKLOADS = {
    "one query": (1, 12, 12),
    "64 queries": (64, 6, 24),
    "64 passages": (64, 60, 250),
    "256 of all lengths": (256, 4, 256),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="a stored name or a directory")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    args = parser.parse_args()
    path = str(ModelStore().resolve(args.model))
    core = open_core(EngineOptions(model=path, num_threads=args.threads, device="cpu"))
    assert isinstance(core, EncoderCore), f"{args.model} is no encoder"
    peer = AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter

    print(f"{'workload':20} {'tokens':>7} {'engine ms':>10} {'transformers ms':>16} {'tokens/s':>9} {'ratio':>6}")
    for name in args.workloads:
        texts = draw_texts(*WORKLOADS[name], vocab_size=core.card.vocab_size)
        ways = (lambda texts=texts: by_engine(core, texts), lambda texts=texts: by_transformers(peer, texts))
        far = (unit(ways[0]()) - unit(ways[1]())).abs().max().item()
        assert far < CLOSE, f"{name}: vectors differ by {far}"
        ours, theirs = least_seconds(ways, args.turns, clock)
        tokens = sum(map(len, texts))
        print(
            f"{name:20} {tokens:7} {ours * 1e3:10.1f} {theirs * 1e3:16.1f} {tokens / ours:9.0f} {theirs / ours:6.2f}",
            flush=True,
        )


def draw_texts(count: int, fewest: int, most: int, vocab_size: int) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(1000, vocab_size) for _ in range(draw.randint(fewest, most))] for _ in range(count)]


def by_engine(core: EncoderCore, texts: Sequence[Sequence[int]]) -> Tensor:
    for place, tokens in enumerate(texts):
        pooling = Sampling(seed=0, pools=True)
        core.add(Request(str(place), tuple(tokens), pooling, Stopping(max_tokens=1), arrival=float(place)))
    vectors = {}
    while core.has_work:
        for delta in core.step():
            vectors[int(delta.request_id)] = torch.frombuffer(bytearray(delta.pooled), dtype=torch.float32)
    return torch.stack([vectors[place] for place in range(len(texts))])


@torch.inference_mode()
def by_transformers(model: torch.nn.Module, texts: Sequence[Sequence[int]]) -> Tensor:
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    vectors: dict[int, Tensor] = {}
    for first in range(0, len(order), BATCH):
        places = order[first : first + BATCH]
        width = len(texts[places[0]])
        ids = torch.tensor([[*texts[place], *[0] * (width - len(texts[place]))] for place in places])
        mask = torch.tensor([[1] * len(texts[place]) + [0] * (width - len(texts[place])) for place in places])
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].float()
        means = (states * weights).sum(dim=1) / weights.sum(dim=1)
        vectors |= dict(zip(places, means, strict=True))
    return torch.stack([vectors[place] for place in range(len(texts))])


def unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True)


def least_seconds(ways: Sequence[Callable[[], object]], turns: int, clock: Callable[[], float]) -> list[float]:
    """Of each way; they take turns, so that what disturbs one disturbs the others."""
    least = [float("inf")] * len(ways)
    for _ in range(turns):
        for place, way in enumerate(ways):
            began = clock()
            way()
            least[place] = min(least[place], clock() - began)
    return least


if __name__ == "__main__":
    main()
