"""Before anything is imported: where there is no GPU, Triton's kernels run on its interpreter."""

import os
from pathlib import Path

if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ["TRITON_INTERPRET"] = "1"
