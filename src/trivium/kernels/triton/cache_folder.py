"""Where compiled kernels are kept: Triton's own folder, or, where nothing can be written there, one of this start alone."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile

from triton import knobs

log = logging.getLogger(__name__)


def make_cache_usable() -> None:
    folder = knobs.cache.dir
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        knobs.cache.dir = tempfile.mkdtemp(prefix="trivium-kernels-")
        atexit.register(shutil.rmtree, knobs.cache.dir, ignore_errors=True)
        log.warning(
            "compiled kernels cannot be kept in %s (%s): they go to %s, and every start compiles anew",
            folder, error.strerror, knobs.cache.dir,
        )  # fmt: skip
