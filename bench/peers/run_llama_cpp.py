"""llama.cpp by the batch calls of its C interface, through llama-cpp-python; the likeliest token by numpy.

One KV buffer for all sequences; a shared prefix is computed once and given to the others without a copy. A context is
made anew for each shape of call, as its size costs speed; the call that makes it is a warm-up's.

Settings: flash=auto|on|off (auto: on for single prompts of many tokens, off else, which was the faster on two machines).
"""

from __future__ import annotations

import ctypes

import llama_cpp as api
import numpy as np
from protocol import serve

BATCH = 2048  # tokens of one call of llama_decode
LONG_PROMPT = 256


class LlamaCpp:
    def __init__(self, model: str, threads: int, settings: dict[str, str]) -> None:
        self._threads = threads
        self._flash = settings.get("flash", "auto")
        self._silence = api.llama_log_callback(lambda *_: None)  # must outlive the calls
        api.llama_log_set(self._silence, ctypes.c_void_p(0))
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
        self._vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(BATCH, 0, 1)
        self._context = None
        self._context_for: tuple[int, int, bool] | None = None
        self.about = {
            "llama-cpp-python": api.__version__,
            "build": api.llama_print_system_info().decode(),
            "flash_attention": self._flash,
            "kv": "unified",
        }

    def generate(self, prompts: list[list[int]], new_tokens: int, shared: int) -> list[list[int]]:
        longest = max(map(len, prompts)) + new_tokens
        self._fit_context(len(prompts), shared + len(prompts) * (longest - shared), self._wants_flash(prompts))
        if shared:
            self._decode([(token, at, 0, False) for at, token in enumerate(prompts[0][:shared])])
            for sequence in range(1, len(prompts)):
                api.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        waiting = [
            (prompt[at], at, sequence, at == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for at in range(shared, len(prompt))
        ]
        last: list[int] = []
        for start in range(0, len(waiting), BATCH):
            last += self._decode(waiting[start : start + BATCH])
        outputs = [[token] for token in last]
        for step in range(1, new_tokens):
            rows = [
                (token, len(prompt) + step - 1, sequence, True)
                for sequence, (token, prompt) in enumerate(zip(last, prompts, strict=True))
            ]
            last = self._decode(rows)
            for output, token in zip(outputs, last, strict=True):
                output.append(token)
        return outputs

    def _wants_flash(self, prompts: list[list[int]]) -> bool:
        if self._flash != "auto":
            return self._flash == "on"
        return len(prompts) == 1 and len(prompts[0]) >= LONG_PROMPT

    def _fit_context(self, sequences: int, tokens: int, flash: bool) -> None:
        wanted = sequences, -(-tokens // 256) * 256, flash
        if self._context_for != wanted:
            if self._context:
                api.llama_free(self._context)
            params = api.llama_context_default_params()
            params.n_seq_max, params.n_ctx, _ = wanted
            params.n_batch, params.n_ubatch = BATCH, 512
            params.n_threads = params.n_threads_batch = self._threads
            params.kv_unified = True
            params.flash_attn_type = int(flash)
            self._context = api.llama_init_from_model(self._model, params)
            self._context_for = wanted
        self._memory = api.llama_get_memory(self._context)
        api.llama_memory_clear(self._memory, False)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Rows of (token, position, sequence, is its successor wanted); the successors that are, in the rows' order."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if code := api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode of {len(rows)} rows gave {code}")
        return [self._likeliest(i) for i, row in enumerate(rows) if row[3]]

    def _likeliest(self, row: int) -> int:
        logits = api.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())


if __name__ == "__main__":
    serve(LlamaCpp)
