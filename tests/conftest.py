"""Before anything is imported: where there is no GPU, Triton's kernels run on its interpreter. Threads of torch that wait for
others sleep, and where several processes share the tests it computes on one, unless an engine is told otherwise: they would
spin against each other for the cores. And drawn examples are the same in every run, however slow it is;
`--hypothesis-profile explore` draws others."""

import contextlib
import os
from pathlib import Path

if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

with contextlib.suppress(ImportError):  # tests/clients has an environment of its own, without it
    from hypothesis import HealthCheck, settings

    SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
    settings.register_profile("explore", **SLOW)
    settings.register_profile("fixed", **SLOW, derandomize=True)
    settings.load_profile("fixed")
