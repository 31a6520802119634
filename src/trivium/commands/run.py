"""`trivium run "prompt"`: one answer on standard output."""

from __future__ import annotations

import argparse
import sys

from trivium.commands.terminal import print_text, terminal_engine
from trivium.types.errors import InvalidRequestError


def run(args: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if not prompt.strip():
        raise InvalidRequestError("the prompt is empty")
    with terminal_engine(args) as engine:
        if args.raw:
            outputs = engine.llm.generate(prompt, engine.sampling)
        else:
            messages = [{"role": "system", "content": args.system}] if args.system else []
            outputs = engine.llm.chat([*messages, {"role": "user", "content": prompt}], engine.sampling)
        engine.write(outputs, print_text)
        print()
    return 0
