"""`trivium chat`: a conversation in the terminal, or over a pipe with one question on each line."""

from __future__ import annotations

import argparse
import contextlib
import sys

from trivium.commands.terminal import TerminalEngine, print_text, terminal_engine
from trivium.types.errors import TriviumError

HELP = "/exit leaves, /reset forgets, /system TEXT sets the system prompt, Ctrl-C stops an answer"


def run(args: argparse.Namespace) -> int:
    with terminal_engine(args) as engine:
        conversation = Conversation(engine, args.system)
        interactive = sys.stdin.isatty()
        if interactive:
            _use_line_editing()
            print(f"{engine.llm.card.name}: {HELP}", file=sys.stderr)
        while (line := _next_line(interactive)) is not None:
            match line.strip().partition(" "):
                case ("", _, _):
                    pass
                case ("/exit", _, _):
                    break
                case ("/reset", _, _):
                    conversation.reset()
                case ("/system", _, text):
                    conversation.set_system(text.strip() or None)
                case (word, _, _) if word.startswith("/"):
                    print(HELP, file=sys.stderr)
                case _:
                    conversation.ask(line)
    return 0


class Conversation:
    """What was said so far. A question that failed is forgotten, an answer that was stopped is kept as far as it came."""

    def __init__(self, engine: TerminalEngine, system: str | None) -> None:
        self._engine = engine
        self._system = system
        self._turns: list[dict[str, str]] = []

    def reset(self) -> None:
        self._turns.clear()

    def set_system(self, text: str | None) -> None:
        """A new system prompt begins a new conversation."""
        self._system = text
        self.reset()

    def ask(self, question: str) -> None:
        system = [{"role": "system", "content": self._system}] if self._system else []
        turns = [*self._turns, {"role": "user", "content": question}]
        answer: list[str] = []

        def on_text(text: str) -> None:
            answer.append(text)
            print_text(text)

        try:
            self._engine.write(self._engine.llm.chat([*system, *turns], self._engine.sampling), on_text)
        except KeyboardInterrupt:
            pass
        except TriviumError as error:
            print(f"trivium: {error}", file=sys.stderr)
            return
        print()
        self._turns = [*turns, {"role": "assistant", "content": "".join(answer)}]


def _next_line(interactive: bool) -> str | None:
    """None at the end of the input."""
    while True:
        try:
            return input("> " if interactive else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D leaves)", file=sys.stderr)


def _use_line_editing() -> None:
    """Importing readline is what gives `input` its history and editing keys."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
