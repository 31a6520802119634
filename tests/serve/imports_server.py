"""`trivium` as always, with the name of every module that its process imports in the file that IMPORTS_LOG names."""

from __future__ import annotations

import os
import sys

log = open(os.environ["IMPORTS_LOG"], "a", buffering=1)  # noqa: SIM115


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "import":
        log.write(f"{arguments[0]}\n")


sys.addaudithook(note)

from trivium.cli import main  # noqa: E402

sys.exit(main())
