"""Installs peers to compare with, each into an environment of its own; what cannot be had here is named and left out.

    python3 bench/install_peers.py [--home DIRECTORY] [name ...]        default: all, masked builds of llama.cpp too

On the standard library alone. llama.cpp is built from source for this machine, which takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

from peer_catalog import DEFAULT_HOME, PEERS, Peer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(peer.name for peer in PEERS))
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME)
    args = parser.parse_args()
    if unknown := set(args.names) - {peer.name for peer in PEERS}:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    wanted = [peer for peer in PEERS if not args.names or peer.name in args.names]
    missing = [peer.name for peer in wanted if not install(peer, args.home)]
    if missing:
        print(f"not to be had here: {', '.join(missing)}; the benchmark runs without them")
    return 1 if len(missing) == len(wanted) else 0


def install(peer: Peer, home: Path) -> bool:
    if peer.is_installed(home):
        print(f"{peer.name}: is here")
        return True
    print(f"{peer.name}: installing {' '.join(peer.requirements)}", flush=True)
    venv.create(home / peer.name, with_pip=True)
    pip = [str(peer.python(home)), "-m", "pip"]
    install = [*pip, "install", "-q", "--disable-pip-version-check", *peer.requirements]
    environment = dict(os.environ)
    if peer.cmake_args is not None:
        # A wheel that pip kept may be of other arguments.
        install += ["--no-cache-dir", "--no-binary", peer.requirements[0].split("==")[0]]
        environment["CMAKE_ARGS"] = peer.cmake_args
    if subprocess.run(install, env=environment).returncode != 0:
        return False
    if peer.unwanted:
        subprocess.run([*pip, "uninstall", "-q", "-y", *peer.unwanted], check=True)
    (home / peer.name / ".installed").touch()
    return True


if __name__ == "__main__":
    sys.exit(main())
