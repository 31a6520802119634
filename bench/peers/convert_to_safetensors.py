"""A GGUF file as a directory with config.json and bfloat16 safetensors, for the peers that read no GGUF.

python convert_to_safetensors.py FILE.gguf DIRECTORY        in an environment that has transformers and gguf
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(file: Path, directory: Path) -> None:
    expanded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = expanded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are no longer what GGUF held
    model = type(expanded)(config)
    model.load_state_dict(expanded.state_dict())
    model.to(torch.bfloat16).save_pretrained(directory)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
