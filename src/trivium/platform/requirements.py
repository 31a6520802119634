"""What must be installed, as a table, and how what is there is told without importing it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from trivium.platform.contract import Requirement
from trivium.platform.version_range import is_within
from trivium.types.checks import Check, CheckState

CORE_REQUIREMENTS = (
    Requirement("python", ">=3.11"),
    Requirement("glibc", ">=2.28"),  # of torch's own wheels
    Requirement("torch", ">=2.11,<2.14", tested=("2.11.0", "2.13.0")),
    Requirement("numpy", ">=1.26"),
    Requirement("safetensors", ">=0.5"),
    Requirement("tokenizers", ">=0.21"),
    Requirement("llguidance", ">=1.9,<2"),
    Requirement("msgspec", ">=0.19"),
    Requirement("pyzmq", ">=26"),
)


def core_version() -> str:
    return installed_version("trivium") or "(not installed)"


def installed_version(component: str) -> str | None:
    if component == "python":
        return platform.python_version()
    if component == "glibc":
        try:
            return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ") or None
        except (OSError, ValueError):  # another C library
            return None
    try:
        return metadata.version(component)
    except metadata.PackageNotFoundError:
        return None


def check_requirement(requirement: Requirement) -> Check:
    name, found = f"version-{requirement.component}", installed_version(requirement.component)
    wanted = requirement.wanted or "any"
    wrong: CheckState = "fail" if requirement.needed else "warn"
    install = f"pip install '{requirement.component}{requirement.wanted}'"
    if requirement.component in ("python", "glibc"):
        install = f"use a system with {requirement.component} {wanted}"
    if found is None:
        return Check(name, wrong, "not installed", wanted, install)
    if found in requirement.known_bad:
        return Check(name, wrong, f"{found}, known to fail", wanted, install)
    if not is_within(found, requirement.wanted):
        return Check(name, wrong, found, wanted, install)
    return Check(name, "ok", found, wanted, "")


def check_single_torch(path: Sequence[str] | None = None) -> Check:
    """Of several, Python imports the first, and what was built for another one crashes. `path`: as sys.path."""
    found = {
        str(Path(str(one.locate_file("torch"))).resolve()): one.version
        for one in metadata.distributions(name="torch", path=list(sys.path if path is None else path))
    }
    shown = ", ".join(f"{version} ({place})" for place, version in found.items()) or "none"
    is_right = len(found) <= 1
    remedy = "" if is_right else "pip uninstall torch until none is left, then install one; look at PYTHONPATH"
    return Check("single-torch", "ok" if is_right else "fail", shown, "one", remedy)
