"""vLLM's CPU build by its `LLM` class, bfloat16, compiled, prefix caching on."""

from __future__ import annotations

import os

from protocol import serve

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


class VLLM:
    def __init__(self, model: str, threads: int, settings: dict[str, str]) -> None:
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        import torch
        import vllm

        longest = 2304
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            model,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=longest,
            max_num_seqs=64,
            max_num_batched_tokens=longest,
            enable_prefix_caching=True,
            disable_log_stats=True,
        )
        self.about = {"vllm": vllm.__version__, "torch": torch.__version__, "dtype": "bfloat16", "longest": longest}

    def generate(self, prompts: list[list[int]], new_tokens: int, shared: int) -> list[list[int]]:
        params = self._params(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    serve(VLLM)
