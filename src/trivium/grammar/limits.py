"""Every limit that guards the engine against a grammar, in one table. A grammar beyond one is refused by name."""

from __future__ import annotations

from msgspec import Struct

MIB = 1 << 20


class GrammarLimits(Struct, frozen=True, kw_only=True):
    # Compiling, tried out in a process that is ended where it takes more.
    text_bytes: int = 1 * MIB
    compile_seconds: float = 10.0
    compile_bytes: int = 256 * MIB
    compiling_at_once: int = 2
    waiting: int = 64  # grammars that wait to be compiled; more are refused for now

    # Kept for the next request with the same grammar.
    kept: int = 256  # grammars
    kept_bytes: int = 512 * MIB  # by what compiling took

    # Matching, in units of the matcher. Where a grammar needs more for one token, its request fails.
    parser_items: int = 50_000  # of one mask; 20,000 take about 1 ms
    lexer_fuel: int = 200_000  # of one mask; 14,000 take about 1 ms
    lexer_states: int = 50_000  # of one grammar; one takes 1 to 2 KiB

    # How long rows that could draw wait for the masks of others, which then draw with a later step.
    mask_patience: float = 0.002
    slow_mask: float = 0.001  # a row whose last mask took longer is served after the others

    # An answer of the grammar process that takes longer means that it hangs: it is ended and started again.
    answer_seconds: float = 20.0
