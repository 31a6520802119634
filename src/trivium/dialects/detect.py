"""The dialects by name, and a model's own told from its chat template: what it shows of past turns, the model writes."""

from __future__ import annotations

from collections.abc import Callable

from trivium.dialects.deepseek import DeepSeekCalls
from trivium.dialects.dialect import Dialect, Marks
from trivium.dialects.gemma import GemmaCalls
from trivium.dialects.glm import GlmCalls
from trivium.dialects.harmony import HarmonyDialect
from trivium.dialects.json_calls import JsonCalls
from trivium.dialects.kimi import KimiCalls
from trivium.dialects.llama import LlamaCalls
from trivium.dialects.mistral import MistralCalls
from trivium.dialects.parameter_xml import ParameterXmlCalls
from trivium.dialects.pythonic import PythonicCalls
from trivium.dialects.tagged import CallSyntax, TaggedDialect

HARMONY = "harmony"

CALLS: dict[str, CallSyntax] = {
    "hermes": JsonCalls("<tool_call>", "</tool_call>"),
    "qwen3_coder": ParameterXmlCalls("<tool_call>", "</tool_call>"),
    "llama3_json": LlamaCalls(),
    "pythonic": PythonicCalls(),
    "mistral": MistralCalls(is_list=False),
    "mistral_list": MistralCalls(is_list=True),
    "deepseek_v3": DeepSeekCalls(is_fenced=True),
    "deepseek_v31": DeepSeekCalls(is_fenced=False),
    "deepseek_v32": ParameterXmlCalls(
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        function='<｜DSML｜invoke name="',
        function_end="</｜DSML｜invoke>",
        parameter='<｜DSML｜parameter name="',
        parameter_end="</｜DSML｜parameter>",
        name_end='">',
        key_ends=(('" string="true">', True), ('" string="false">', False)),
    ),
    "gemma4": GemmaCalls("<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": GemmaCalls("<start_function_call>", "<end_function_call>", "<escape>"),
    "glm": GlmCalls(),
    "kimi_k2": KimiCalls(),
    "minimax": ParameterXmlCalls(
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        function='<invoke name="',
        function_end="</invoke>",
        parameter='<parameter name="',
        name_end='">',
        key_ends=(('">', None),),
    ),
    "seed_oss": ParameterXmlCalls("<seed:tool_call>", "</seed:tool_call>"),
    "lfm2": PythonicCalls("<|tool_call_start|>", "<|tool_call_end|>"),
    "minimax_m1": JsonCalls("<tool_calls>", "</tool_calls>"),
    "granite": JsonCalls("<|tool_call|>", "", is_list=True),
    "nemotron": JsonCalls("<TOOLCALL>", "</TOOLCALL>", is_list=True),
}

REASONING: dict[str, Marks] = {
    "think": Marks("<think>", "</think>"),
    "mistral": Marks("[THINK]", "[/THINK]"),
    "seed": Marks("<seed:think>", "</seed:think>"),
    "gemma4": Marks("<|channel>thought", "<channel|>"),
}

CALL_NAMES = (*CALLS, HARMONY)
REASONING_NAMES = (*REASONING, HARMONY)

# What a template must have to be of a dialect, the particular before the general.
_CALL_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v32", ("｜DSML｜", "function_calls>")),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("gemma4", ("<|tool_call>call:",)),
    ("functiongemma", ("<start_function_call>",)),
    ("minimax_m1", ("<tool_calls>\\n",)),
    ("minimax", ("<minimax:tool_call>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("granite", ("<|tool_call|>",)),
    ("nemotron", ("<TOOLCALL>",)),
    ("mistral_list", ("[TOOL_CALLS][",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("glm", ("<arg_key>", "<tool_call>")),
    ("qwen3_coder", ("<function=", "<tool_call>")),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|header_start|>",)),
    ("pythonic", ("[func_name1(",)),
    ("llama3_json", ('"parameters": ', "<|start_header_id|>")),
)
_FALLBACK = "hermes"


def detect(
    template: str,
    calls: str | None = None,
    reasoning: str | None = None,
    *,
    is_token: Callable[[str], bool] = lambda mark: False,
) -> Dialect:
    """`template`: the source of the model's chat templates. `calls`, `reasoning`: dialects by name, where they are given;
    a reasoning of "none" marks nothing. `is_token`: whether the model has a token of its own for a mark, which tells
    where the template does not."""
    if calls == HARMONY or reasoning == HARMONY or (calls is None and _is_harmony(template)):
        return HarmonyDialect()
    calls = calls or _calls_of(template, is_token)
    marks = _reasoning_of(template) if reasoning is None else REASONING.get(reasoning)
    return TaggedDialect(calls, marks, CALLS[calls])


def _is_harmony(template: str) -> bool:
    return "<|channel|>" in template and "<|message|>" in template


def _calls_of(template: str, is_token: Callable[[str], bool]) -> str:
    for name, signs in _CALL_SIGNS:
        if all(sign in template for sign in signs):
            return name
    return next((name for name, syntax in CALLS.items() if any(map(is_token, syntax.openers))), _FALLBACK)


def _reasoning_of(template: str) -> Marks | None:
    return next((marks for marks in REASONING.values() if marks.end in template), None)
