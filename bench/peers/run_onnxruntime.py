"""ONNX Runtime GenAI, weights of 4 bits: all requests of a call in one batch that starts and ends together; no prefix is reused."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import onnxruntime_genai as genai
from protocol import serve


class OnnxRuntime:
    def __init__(self, model: str, threads: int, settings: dict[str, str]) -> None:
        config = genai.Config(model)
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        no_token = 49151  # an end token that greedy sampling is not seen to draw: there is no way to ignore one
        config.overlay(json.dumps({"model": {"eos_token_id": no_token, "decoder": {"session_options": options}}}))
        self._model = genai.Model(config)
        self.about = {"onnxruntime": onnxruntime.__version__, "onnxruntime-genai": genai.__version__, "weights": "int4"}

    def generate(self, prompts: list[list[int]], new_tokens: int, shared: int) -> list[list[int]]:
        length = len(prompts[0])
        params = genai.GeneratorParams(self._model)
        params.set_search_options(max_length=length + new_tokens, batch_size=len(prompts), do_sample=False)
        generator = genai.Generator(self._model, params)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        for _ in range(new_tokens):
            generator.generate_next_token()
        return [generator.get_sequence(i)[length:].tolist() for i in range(len(prompts))]


if __name__ == "__main__":
    serve(OnnxRuntime)
