"""The tensors of a model's files, as torch sees them: views of the mapped files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trivium.formats.gguf import GGUFFile
from trivium.formats.source import ModelSource
from trivium.kernels.weights import QuantizedTensor, Weight
from trivium.models.family import Family
from trivium.models.from_gguf import NOT_WEIGHTS
from trivium.models.weights import Places

FLOAT_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class StoredTensor:
    name: str  # in the file
    type: str  # a GGUF type, or a safetensors dtype
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Checkpoint:
    path: str
    tensors: dict[str, StoredTensor]  # of the decoder, by the names that `places` uses
    places: Places
    read_bytes: Callable[[str], np.ndarray]
    release_bytes: Callable[[str], None]

    @classmethod
    def of(cls, source: ModelSource, family: Family) -> Checkpoint:
        if isinstance(source, GGUFFile):
            stored = {
                name: StoredTensor(name, tensor.type, tensor.shape, tensor.nbytes)
                for name, tensor in source.tensors.items()
                if name not in NOT_WEIGHTS
            }
            return cls(str(source.path), stored, family.gguf_places, source.read, source.release)
        weights = source.weights
        stored = {
            _renamed(name, family): StoredTensor(name, entry.dtype, entry.shape, entry.nbytes)
            for name, entry in weights.tensors.items()
            if not _renamed(name, family).startswith(family.hf_ignored)
            and not name.endswith("rotary_emb.inv_freq")  # of early Llama checkpoints; computed from the spec
        }
        return cls(str(source.path), stored, family.hf_places, weights.read, weights.release)

    def read(self, name: str) -> Weight:
        """The tensor in the type it is stored in, which is a float type or one of QUANT_TYPES."""
        tensor = self.tensors[name]
        data = as_torch(self.read_bytes(tensor.name))
        if tensor.type in FLOAT_DTYPES:
            dtype = FLOAT_DTYPES[tensor.type]
            if data.data_ptr() % dtype.itemsize:
                data = data.clone()  # safetensors promises no alignment
            return data.view(dtype).view(tensor.shape)
        return QuantizedTensor(tensor.type, data.view(*tensor.shape[:-1], -1), tensor.shape)

    def release(self, name: str) -> None:
        """The tensor will not be read again soon: its pages need not stay in memory."""
        self.release_bytes(self.tensors[name].name)


def _renamed(name: str, family: Family) -> str:
    for prefix, read_as in family.hf_prefixes:
        if name.startswith(prefix):
            return read_as + name.removeprefix(prefix)
    return name


def as_torch(data: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        # Torch cannot mark a tensor read-only; nobody writes to weights, and the mapping would not let them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(data)
