"""The device that the core's own tests run on: the CPU, or what TEST_DEVICE names (`make test-gpu` says cuda)."""

from __future__ import annotations

import os

DEVICE = os.environ.get("TEST_DEVICE", "cpu")
