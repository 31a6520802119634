"""What must be installed, as a table, and how what is there is told without importing it."""

from __future__ import annotations

import os
import platform
from importlib import metadata

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
