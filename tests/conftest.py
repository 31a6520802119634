"""Before anything is imported: where there is no GPU, Triton's kernels run on its interpreter."""

import os
from pathlib import Path

if not Path("/dev/nvidia0").exists():
    os.environ["TRITON_INTERPRET"] = "1"
