"""lm-eval, as its users run it: it scores texts as transformers does, and has answers written."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from conftest import SERVER_PYTHON
from page_programs import run_page
from server_process import ServerProcess

# Prints the log-probability of each choice after each context, as JSON. Arguments: the model, and the pairs as JSON.
BY_TRANSFORMERS = """
import json, sys
import tokenizers, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
scores = []
for context, choice in json.loads(sys.argv[2]):
    before, ids = (tokenizer.encode(text).ids for text in (context, context + choice))
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    scores.append(sum(logprobs[place - 1, ids[place]].item() for place in range(len(before), len(ids))))
print(json.dumps(scores))
"""


def test_scores_are_those_of_transformers_and_answers_are_written(
    server: ServerProcess, tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    said = run_page("lm-eval", server.url, "tiny", cwd=tmp_path)
    assert "|acc" in said and "|exact_match|" in said
    (samples,) = tmp_path.glob("scores/**/samples_capitals_*.jsonl")
    requests = [
        (request, float(score[0][0]))
        for line in map(json.loads, samples.read_text().splitlines())
        for request, score in zip(line["arguments"].values(), line["resps"], strict=True)
    ]
    assert len(requests) == 9
    pairs = json.dumps([(request["arg_0"], request["arg_1"]) for request, _ in requests])
    ran = subprocess.run([SERVER_PYTHON, "-c", BY_TRANSFORMERS, tiny_model, pairs], capture_output=True, check=True)
    assert [score for _, score in requests] == pytest.approx(json.loads(ran.stdout), abs=1e-3)
