"""Checks of what this process may use: its limits, its container's, and the places that it writes to."""

from __future__ import annotations

import errno
import locale
import os
import resource
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from trivium.platform.cgroup import memory_limit, processor_limit
from trivium.platform.host_memory import memory_info
from trivium.types.checks import Check, CheckState

MIB, GIB = 1 << 20, 1 << 30
LEAST_SHARED_BYTES = 64 * MIB  # what containers get unasked; ours go by memfd, vendors' runtimes go through here
FILES_OF_ITS_OWN = 128  # sockets, pipes and model files besides a socket for each client
LEAST_DISK_BYTES = GIB
LEAST_TEMPORARY_BYTES = 64 * MIB  # sockets, and models that clients send while they are put together
ROOT = Path("/")


def check_container_memory(root: Path = ROOT) -> Check:
    """Not wrong, but no other line tells why the machine's memory cannot be had."""
    total, limit = memory_info(root)["MemTotal"], memory_limit(root)
    if limit is None or limit.limit_bytes >= total:
        return Check("container-memory", "ok", f"all {total // MIB} MiB", "the machine's", "")
    shown = f"{limit.limit_bytes // MIB} of {total // MIB} MiB ({limit.file})"
    remedy = "more fits where the container's limit is raised (docker: --memory, Kubernetes: resources.limits.memory)"
    return Check("container-memory", "warn", shown, "the machine's", remedy)


def check_container_processors(root: Path = ROOT) -> Check:
    present, limit = os.cpu_count() or 1, processor_limit(root)
    if limit is None or limit.cores >= present:
        return Check("container-processors", "ok", f"all {present}", "the machine's", "")
    shown = f"{limit.cores:g} of {present} ({limit.file})"
    remedy = "steps are faster where the container's limit is raised (docker: --cpus, Kubernetes: resources.limits.cpu)"
    return Check("container-processors", "warn", shown, "the machine's", remedy)


def check_shared_memory(path: Path = ROOT / "dev/shm", wanted_bytes: int = LEAST_SHARED_BYTES) -> Check:
    free = shutil.disk_usage(path).free if path.is_dir() else 0
    enough = free >= wanted_bytes
    remedy = "" if enough else "give the container more shared memory: --shm-size=1g"
    return Check(
        "shared-memory", _warn_unless(enough), f"{free // MIB} MiB free", f">= {wanted_bytes // MIB} MiB", remedy
    )


def check_open_files(num_clients: int) -> Check:
    """The server raises its limit as far as it may, so that is what counts."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_clients + FILES_OF_ITS_OWN
    enough = limit == resource.RLIM_INFINITY or limit >= wanted
    shown = "no limit" if limit == resource.RLIM_INFINITY else str(limit)
    remedy = "" if enough else f"raise the hard limit (ulimit -Hn {wanted}), or lower --max-waiting"
    why = f">= {wanted}, for {num_clients} clients"
    return Check("open-files", _warn_unless(enough), shown, why, remedy)


def check_address_space() -> Check:
    """The KV cache and mapped weights are address space long before they are memory."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_free = limit == resource.RLIM_INFINITY
    shown = "no limit" if is_free else f"{limit // MIB} MiB"
    remedy = "" if is_free else "ulimit -v unlimited: limit memory by a container, not addresses"
    return Check("address-space", _warn_unless(is_free), shown, "no limit", remedy)


def check_temporary_files(directory: Path | None = None, wanted_bytes: int = LEAST_TEMPORARY_BYTES) -> Check:
    """By writing one: permissions say little of file systems that can only be read."""
    wanted = f"writable, >= {wanted_bytes // MIB} MiB free"
    try:
        place = Path(tempfile.gettempdir()) if directory is None else directory
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0")
            file.flush()
        free = shutil.disk_usage(place).free
    except OSError as error:
        shown = f"{directory or 'no temporary directory'} cannot be written: {error.strerror or error}"
        return Check("temporary-files", "fail", shown, wanted, "set TMPDIR to a directory that can be written")
    enough = free >= wanted_bytes
    remedy = "" if enough else f"make room in {place}, or set TMPDIR to another disk"
    return Check("temporary-files", _warn_unless(enough), f"{free // MIB} MiB free in {place}", wanted, remedy)


def check_cache(cache: Path, wanted_bytes: int = LEAST_DISK_BYTES) -> Check:
    """The nearest directory that exists, since the cache itself is made at its first use."""
    wanted_bytes = max(wanted_bytes, LEAST_DISK_BYTES)
    wanted = f"writable, >= {wanted_bytes // MIB} MiB free"
    place = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        shown = f"{place} cannot be written"
        return Check("cache", "warn", shown, wanted, "set TRIVIUM_HOME to a directory of yours")
    free = shutil.disk_usage(place).free
    enough = free >= wanted_bytes
    remedy = "" if enough else f"make room in {place}, or set TRIVIUM_HOME to another disk"
    return Check("cache", _warn_unless(enough), f"{free // MIB} MiB free in {place}", wanted, remedy)


def check_loopback(address: str = "127.0.0.1") -> Check:
    """By a connection to itself."""
    wanted = f"a connection to {address}"
    try:
        with (
            socket.create_server((address, 0)) as server,
            socket.create_connection(server.getsockname(), timeout=10.0),
        ):
            pass
    except OSError as error:
        shown = errno.errorcode.get(error.errno or 0, type(error).__name__)
        remedy = "bring the loopback interface up: ip link set lo up"
        return Check("loopback", "fail", f"{shown}: {error.strerror or error}", wanted, remedy)
    return Check("loopback", "ok", "it connects", wanted, "")


def check_locale() -> Check:
    """What people write is read from and written to terminals and files in this encoding."""
    found = {locale.getpreferredencoding(False), sys.getfilesystemencoding()}
    is_right = all(name.lower().replace("-", "") == "utf8" for name in found)
    remedy = "" if is_right else "export LC_ALL=C.UTF-8 (or PYTHONUTF8=1)"
    return Check("locale", _warn_unless(is_right), ", ".join(sorted(found)), "UTF-8", remedy)


def _warn_unless(is_right: bool) -> CheckState:
    return "ok" if is_right else "warn"
