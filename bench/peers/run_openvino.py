"""OpenVINO GenAI, which reads the GGUF file itself: continuous batching with prefix caching.

Requests of one call that share a prefix learn of each other only when one of them has ended, so the first goes alone.
"""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai as genai
from protocol import serve


class OpenVINO:
    def __init__(self, model: str, threads: int, settings: dict[str, str]) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2  # GB
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = 64
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        properties = {"INFERENCE_NUM_THREADS": threads, **settings}
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self.about = {"openvino": openvino.__version__, "openvino-genai": genai.__version__, "properties": properties}

    def generate(self, prompts: list[list[int]], new_tokens: int, shared: int) -> list[list[int]]:
        if shared and len(prompts) > 1:
            return self._together(prompts[:1], new_tokens) + self._together(prompts[1:], new_tokens)
        return self._together(prompts, new_tokens)

    def _together(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new_tokens
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(inputs, [config] * len(prompts))
        return [list(result.m_generation_ids[0])[-new_tokens:] for result in results]


if __name__ == "__main__":
    serve(OpenVINO)
