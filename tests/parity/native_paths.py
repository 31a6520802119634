"""Every instruction set that was built and that this machine runs."""

from functools import cache

import pytest

from trivium.kernels.native import usable_instruction_sets
from trivium.kernels.ops import Ops
from trivium.kernels.select import native_ops
from trivium.types.errors import ConfigError

try:
    INSTRUCTION_SETS = usable_instruction_sets()
except ConfigError as error:
    pytest.skip(str(error), allow_module_level=True)

every_path = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)


@cache
def ops_of(instruction_set: str, num_threads: int = 2) -> Ops:
    return native_ops(instruction_set, num_threads)
