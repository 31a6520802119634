"""Makes .venv and installs the project into it, quietly, with a line that shows what is going on.

    python3 tools/setup.py [extra ...]

Runs on the standard library alone. Does nothing when the environment already holds what pyproject.toml asks for.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = ROOT / "build" / "setup.log"


def main(extras: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 — this file runs before anything checked the version
        print(f"Trivium needs Python 3.11 or newer; this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    stamp = VENV / f".installed-{'-'.join(extras) or 'base'}"
    key = fingerprint()
    if PYTHON.exists() and any(done.read_text() == key for done in VENV.glob(stamp.name if extras else ".installed-*")):
        return 0
    if not PYTHON.exists():
        print("setup: making .venv", flush=True)
        venv.create(VENV, with_pip=True)
    target = f".[{','.join(extras)}]" if extras else "."
    print(f"setup: installing {target} (the first time takes a few minutes; log: build/setup.log)", flush=True)
    started = time.monotonic()
    code = run_with_progress([str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-e", target])
    if code != 0:
        print("setup: the installation failed; the end of its log:", file=sys.stderr)
        print("\n".join(LOG.read_text().splitlines()[-20:]), file=sys.stderr)
        return code
    stamp.write_text(key)
    print(f"setup: ready in {time.monotonic() - started:.0f} s; {native_state()}", flush=True)
    return 0


def fingerprint() -> str:
    """Of everything an installation is made from; sources in Python are used in place."""
    digest = hashlib.sha256()
    for path in [ROOT / "pyproject.toml", *sorted((ROOT / "native").rglob("*"))]:
        if path.is_file():
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run_with_progress(command: list[str]) -> int:
    LOG.parent.mkdir(exist_ok=True)
    width = shutil.get_terminal_size().columns - 1
    show = sys.stdout.isatty()
    with (
        LOG.open("w") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if show:
                print(f"\r{line.strip()[:width]:<{width}}", end="", flush=True)
    if show:
        print("\r" + " " * width, end="\r", flush=True)
    return process.returncode


def native_state() -> str:
    script = "from trivium.kernels.native import native_state; print(native_state())"
    result = subprocess.run([str(PYTHON), "-c", script], capture_output=True, text=True, cwd=ROOT)
    return result.stdout.strip() or "the native kernels could not be asked"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
