"""How a GGUF file's byte-level BPE splits text into words before merging, by the name under `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizers. Several patterns are applied one after another, each to the
pieces that the one before left; what a pattern does not match is a piece too.
"""

from __future__ import annotations

from msgspec import Struct
from tokenizers import Regex, normalizers, pre_tokenizers


class PreTokenizer(Struct, frozen=True):
    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token whole is that token, whatever the merges say
    add_bos: bool = False  # where the file does not say
    nfc: bool = False  # the model was trained on text in Unicode's composed form

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """Letters with one leading mark, groups of digits, punctuation with the line ends after it, spaces."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased_words(digits: str, contractions: str) -> str:
    """As `_words`, but a word ends where lower case is followed by upper case."""
    mark, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (
        rf"{mark}{upper}*{lower}+{contractions}|{mark}{upper}+{lower}*{contractions}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_THREE_DIGITS = PreTokenizer((_words(r"\p{N}{1,3}"),))
_QWEN2 = PreTokenizer((_words(r"\p{N}"),), nfc=True)
_ONE_DIGIT = PreTokenizer((_words(r"\p{N}"),))
_QWEN35 = PreTokenizer(
    (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    ),
    nfc=True,
)
_GPT2_WORDS = PreTokenizer((_GPT2,))
_GPT2_WORDS_NFC = PreTokenizer((_GPT2,), nfc=True)
_DIGITS_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))
_TEKKEN = PreTokenizer((_cased_words(r"\p{N}", ""),), ignore_merges=True, add_bos=True)
_GPT4O = PreTokenizer((_cased_words(r"\p{N}{1,3}", rf"{_CONTRACTIONS}?"),))
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

# Letters of the scripts that have case, as DeepSeek's first tokenizer lists them. By code point, because an editor
# that normalizes Unicode would change some of them.
_CASED_LETTERS = (
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}"
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}"
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}"
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}"
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}"
    r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}"
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_EAST_ASIAN = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_DEEPSEEK_LLM = PreTokenizer(
    (
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
        r"\s+$",
        _EAST_ASIAN,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}"))
_DEEPSEEK3 = PreTokenizer(
    (
        r"\p{N}{1,3}",
        r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        rf"""| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}""",
    )
)

DEFAULT_PRE_TOKENIZER = "default"
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    DEFAULT_PRE_TOKENIZER: _DEFAULT,
    "gpt-2": _GPT2_WORDS,
    "phi-2": _GPT2_WORDS,
    "jais": _GPT2_WORDS,
    "exaone4": _GPT2_WORDS,
    "mpt": _GPT2_WORDS_NFC,
    "olmo": _GPT2_WORDS_NFC,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _THREE_DIGITS,
    "smaug-bpe": _THREE_DIGITS,
    "chatglm-bpe": _THREE_DIGITS,
    "glm4": _THREE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _QWEN35,
    "stablelm2": _ONE_DIGIT,
    "hunyuan": _ONE_DIGIT,
    "megrez": _ONE_DIGIT,
    "grok-2": _ONE_DIGIT,
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "codeshell": _DIGITS_THEN_GPT2,
    "exaone": _DIGITS_THEN_GPT2,
    "command-r": PreTokenizer(_DIGITS_THEN_GPT2.patterns, nfc=True),
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-v3": _DEEPSEEK3,
    "hunyuan-dense": _DEEPSEEK3,
    "falcon": _FALCON,
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
}
