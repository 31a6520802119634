"""A start without weights or memory: steps of every kind are run on shapes alone, for whoever notes what they launch."""

from __future__ import annotations

from dataclasses import replace

import torch

from trivium.config.resolve import EngineConfig
from trivium.engine.warm_up import prompts_of_all_lengths, warm_up
from trivium.execute.rows import Rows
from trivium.execute.runner import Runner
from trivium.execute.send import SHAPES_ALONE
from trivium.execute.shadow import Shadow
from trivium.grammar.service import GrammarService
from trivium.kernels.ops import Ops
from trivium.models.kv_cache import KVCache
from trivium.models.load import shape_model
from trivium.models.spec import ModelSpec


def dry_run(config: EngineConfig, spec: ModelSpec, ops: Ops) -> None:
    """Steps of all sizes that would be captured, those of the warm-up, and prompts of lengths that may come later."""
    device = torch.device(SHAPES_ALONE)
    ops = replace(ops, capture=lambda work: work)
    model = shape_model(spec, ops, getattr(torch, config.dtype), device, config.max_model_len)
    model = model.with_layers(spec.num_layers_of_all_kinds)
    rows = Rows(config.options.max_num_seqs, config.max_model_len, config.kv, device)
    kv = KVCache(config.kv, config.num_blocks, ops.kv_layout, device)
    grammars = GrammarService(config.options.model, spec.vocab_size, spec.eos_ids, config.options.max_num_seqs)
    runner = Runner(model, kv, rows, config.kv.block_size, device, grammars, Shadow(0, lambda _: None))
    warm_up(config, runner, spec.vocab_size)
    prompts_of_all_lengths(config, runner, spec.vocab_size)
