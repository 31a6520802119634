"""Trivium as a program uses it: `LLM`, with its engine in a process of its own."""

from __future__ import annotations

from protocol import serve

from trivium import LLM, SamplingParams


class Trivium:
    def __init__(self, model: str, threads: int, settings: dict[str, str]) -> None:
        given = {name: int(value) if value.isdigit() else value for name, value in settings.items()}
        options = {"num_threads": threads, "skip_tokenizer_init": True, "device": "cpu", **given}
        # The benchmark stops the engine while others have their turn; that is not to be taken for a failure.
        self._llm = LLM(model, stall_seconds=0, **options)
        self.about = {"kernels": list(self._llm.card.kernels), "graph": self._llm.card.graph}

    def generate(self, prompts: list[list[int]], new_tokens: int, shared: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    serve(Trivium)
