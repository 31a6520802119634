"""Pages that the system gives before they are written to. It clears each one first: a prompt that writes to new ones waits
for that, 0.2 ms for 2 MiB, or several on a virtual machine whose own host has to find them."""

from __future__ import annotations

import ctypes
import logging
import os

from torch import Tensor

from trivium.kernels.large_pages import PAGE_BYTES

log = logging.getLogger(__name__)

MADV_POPULATE_WRITE = 23  # madvise(2), from Linux 5.14 on: as if it were written to, and what is there stays


class PagesAhead:
    """Of memory that is taken from its beginning on."""

    def __init__(self, memory: Tensor) -> None:
        self._begin = memory.data_ptr()
        self._end = self._begin + memory.nbytes
        self._at = -(-self._begin // PAGE_BYTES) * PAGE_BYTES  # up to where pages are there, or were tried to be

    def fetch(self, num_bytes: int) -> bool:
        """A large page of the first `num_bytes` that has not come yet; False where there is none."""
        end = min(self._begin + num_bytes, self._end)
        if self._at + PAGE_BYTES > end:
            return False
        address, self._at = self._at, self._at + PAGE_BYTES
        madvise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
        if madvise is None or madvise(ctypes.c_void_p(address), ctypes.c_size_t(PAGE_BYTES), MADV_POPULATE_WRITE) != 0:
            why = "there is no madvise" if madvise is None else os.strerror(ctypes.get_errno())
            log.debug("no pages are fetched ahead: %s", why)
            self._at = self._end
        return True
