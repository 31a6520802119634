"""Prompts of a wanted length for a server whose tokenizer is not known: common words, and a measure of what they cost."""

from __future__ import annotations

import random

from msgspec import Struct

# Words that nearly every tokenizer in use has as one token with the space before it. There are 256: one for each byte.
COMMON_WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea kid body information back parent face
others level office door health person art war history party result change morning reason research girl guy moment air
teacher force education foot boy age policy process music market sense nation plan college interest death experience
effect use class control field development role effort rate heart drug show leader light voice wife police mind price
report decision son view relationship town road arm difference value building action model season society tax director
position player record paper space ground form event official matter center couple site project activity star table
need court oil situation cost industry figure street image phone data picture practice piece land product doctor wall
patient worker news test movie north love support technology step baby computer type attention film tree source truth
summer winter river sea fire stone gold silver blue green red black white brown horse dog bird fish wind rain snow sun
moon sky hill lake farm garden bridge train ship plane bus boat map key box cup glass bread milk letter army king
queen church island forest spring evening window floor chair
"""
WORDS = COMMON_WORDS.split()

LEAST_PER_WORD = 0.5  # tokens; a server that counts fewer does not count what it is sent


class PromptCost(Struct, frozen=True):
    """Tokens of a prompt = fixed + per_word × words, as two probes showed; the chat template is in `fixed`."""

    per_word: float = 1.0
    fixed: float = 0.0

    @classmethod
    def fit(cls, short: tuple[int, int], long: tuple[int, int]) -> PromptCost:
        """From two (words, tokens)."""
        per_word = max((long[1] - short[1]) / (long[0] - short[0]), LEAST_PER_WORD)
        return cls(per_word, max(short[1] - per_word * short[0], 0.0))

    def words_for(self, tokens: int) -> int:
        return max(1, round((tokens - self.fixed) / self.per_word))

    def words_per_block(self, tokens: int) -> int:
        """Of text inside a prompt, where the template does not count."""
        return max(1, round(tokens / self.per_word))


def random_words(key: str, count: int) -> list[str]:
    """The same for the same key. A byte chooses a word: traces have hundreds of millions of them."""
    return [WORDS[byte] for byte in random.Random(key).randbytes(count)]


def own_prompt(key: str, tokens: int, cost: PromptCost) -> str:
    """A text that begins like no other."""
    return " ".join(random_words(key, cost.words_for(tokens)))


def prefixed_prompt(prefix_key: str, prefix_tokens: int, key: str, own_tokens: int, cost: PromptCost) -> str:
    """A text whose first `prefix_tokens` are those of every prompt with the same prefix key."""
    prefix = random_words(prefix_key, cost.words_for(prefix_tokens))
    return " ".join(prefix + random_words(key, cost.words_per_block(own_tokens)))


def block_prompt(name: str, blocks: tuple[int, ...], block_tokens: int, tokens: int, cost: PromptCost) -> str:
    """A text made of blocks: those with equal numbers are equal."""
    wanted = cost.words_for(tokens)
    words: list[str] = []
    for block in blocks:
        if len(words) >= wanted:
            break
        words += random_words(f"{name}/block/{block}", cost.words_per_block(block_tokens))
    if len(words) < wanted:
        words += random_words(f"{name}/rest/{blocks}", wanted - len(words))
    return " ".join(words[:wanted])
