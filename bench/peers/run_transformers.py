"""transformers, eager, bfloat16: all requests of a call in one batch; no prefix is reused."""

from __future__ import annotations

import torch
import transformers
from protocol import serve


class Transformers:
    def __init__(self, model: str, threads: int, settings: dict[str, str]) -> None:
        torch.set_num_threads(threads)
        dtype = torch.bfloat16
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
        self._model.generation_config.eos_token_id = None
        self.about = {"transformers": transformers.__version__, "torch": torch.__version__, "dtype": str(dtype)}

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], new_tokens: int, shared: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        output = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return output[:, ids.shape[1] :].tolist()


if __name__ == "__main__":
    serve(Transformers)
