"""JSON of a type, drawn at random: as the type wants it, and spoiled in ways that types, parsers and databases dislike."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import inspect
from tiny_model import MODEL

# Names stand for text that json.dumps cannot write.
RAW = {
    "@deep list": "[" * 10_000 + "]" * 10_000,
    "@deep object": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "@huge number": "1" + "0" * 5_000,
    "@huge exponent": "1e999999999",
    "@minus zero": "-0",
    "@twice": '{"a": 1, "a": 2}',
}
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30,
    0.0, -0.5, 0.1, 1.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"), float("-inf"),
    "", " ", "\0", "a\0b", "\ud800", "x\udfff", "\uffff", "\u202e", "🙂", "e\u0301" * 40, "1", "-1", "true", "null", "NaN",
    "../../etc/passwd", "/", "..", "%00", "<|im_end|>", "<think>", "{{ 7 * 7 }}", "{% for %}", "' OR 1=1 --", "data:x,y",
    "a" * 5_000, "\n" * 300, [], {}, [[]], [{}], [None], {"": None}, {"a": {}}, {"type": "x"}, [0] * 3_000, ["a"] * 300,
    {"$ref": "#"}, {"type": ["string", 1]}, {"role": "user"}, *RAW,
)  # fmt: skip

TEXTS = ("Hello", "the quick brown fox", "x", "äöü 你好 🙂", '{"a": 1}', "a\nb")
SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["a"]},
    {"enum": ["a", 1, None]},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    {"type": "string", "pattern": "^[a-c]{2}$"},
    {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"const": 2}}},
    {"type": "object", "not": {}},
    {"type": "string", "format": "date"},
)
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMAS[0]}
ITEMS: tuple[Any, ...] = (
    {"role": "user", "content": "Hello"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "c1", "output": "2"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "item_reference", "id": "msg_1"},
)

# By field, or by struct and field: what such a field plausibly holds, where its type does not say it.
PLAUSIBLE: dict[str, tuple[Any, ...]] = {
    "model": (MODEL,), "CreateRequest.model": ("made", "made:2"), "ModelRequest.model": (MODEL, "made", "copy"), "source": (MODEL,), "from": (MODEL,), "destination": ("copy", "copy:2"), "modelfile": (f"FROM {MODEL}",),
    "max_tokens": (1, 2, 3), "max_completion_tokens": (1, 2, 3), "max_output_tokens": (1, 2, 3), "min_tokens": (0, 1),
    "n": (1, 2, 3), "best_of": (3, 4), "logprobs": (True, False), "CompletionRequest.logprobs": (0, 2), "top_logprobs": (0, 2), "prompt_logprobs": (0, 2),
    "top_k": (-1, 0, 5), "seed": (0, 7), "priority": (0, 1), "stop": ("a", ["b", "c"]), "stop_token_ids": ([5],),
    "logit_bias": ({"5": 1},), "bad_words": (["the"],), "allowed_token_ids": ([5, 6, 7],), "truncate_prompt_tokens": (1, 8),
    "thinking_budget": (0, 2), "thinking_token_budget": (1,), "cache_salt": ("s",), "user": ("u",),
    "tools": ([{"type": "function", "function": FUNCTION}], [{"type": "function", **FUNCTION}], []),
    "functions": ([FUNCTION],), "function_call": ("auto", {"name": "f"}),
    "ChatMessage.function_call": ({"name": "f", "arguments": "{}"},),
    "tool_choice": ("none", "auto", "required", {"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "f"}),
    "reasoning_effort": ("none", "low", "high"), "effort": ("none", "low"), "modalities": (["text"],),
    "ResponseFormat.type": ("text", "json_object", "json_schema"), "schema": SCHEMAS, "json_schema": SCHEMAS, "guided_json": SCHEMAS,
    "input_schema": SCHEMAS, "parameters": SCHEMAS, "structured_outputs": ({"choice": ["a", "b"]}, {"regex": "a|b"}),
    "regex": ("[ab]{1,3}",), "guided_regex": ("[ab]{1,3}",), "guided_choice": (["a", "b"],),
    "grammar": ('root ::= "a" | "b"',), "ebnf": ('root ::= "a"',), "guided_grammar": ('start: "a"',),
    "structural_tag": ({"format": {"type": "json_schema", "json_schema": SCHEMAS[0]}},),
    "structures": (None,), "triggers": (None,), "format": ("json", SCHEMAS[0], None), "ResponseFormat.format": (None,),
    "CreateResponse.text": (None, {"format": {"type": "text"}}), "InputRequest.text": (None,),
    "ContentPart.type": ("text",), "Block.type": ("text", "thinking", "tool_use", "tool_result"), "Block.content": ("x", None),
    "text": TEXTS, "input": ("Hello", "x"), "CreateResponse.input": ("Hello", [ITEMS[0]], list(ITEMS[:5])), "InputRequest.input": ("Hello", [ITEMS[2]]),
    "items": ([], [ITEMS[0]], list(ITEMS[:4])), "arguments": ('{"a": 1}', {"a": 1}), "chat_template_kwargs": ({}, {"suffix": "x"}),
    "options": ({"num_predict": 2}, {"num_predict": 1, "temperature": 0.5, "stop": ["a"]}), "keep_alive": ("5m", 10, -1),
    "images": (None,), "template": (None,), "context": ([5, 6],), "raw": (None, True), "suffix": (None,), "think": (None, False),
    "tokens": ([5, 6, 7],), "dimensions": (8, 64), "top_n": (1, 2), "documents": (["a", "b"], [{"text": "c"}]), "texts": (["a"],),
    "completion_window": ("24h",), "endpoint": ("/v1/chat/completions", "/v1/responses"), "metadata": ({"a": "b"},),
    "include": (["message.output_text.logprobs"], []), "audio": (None,), "lora_path": (None,), "logits_processors": (None,),
    "chat_template": (None,), "prompt_embeds": (None,), "use_beam_search": (None, False), "CreateResponse.prompt": (None,),
    "InputRequest.prompt": (None,), "CompletionRequest.prompt": ("Hello", ["a", "b"], [5, 6], [[5], [6, 7]]), "quantize": (None,), "files": (None,), "adapters": (None,), "Tool.type": (None, "custom"),
    "OutputFormat.type": ("json_schema",), "Source.type": ("text",), "encoding_format": ("float", "base64"),
    "truncation": ("auto", "disabled"), "service_tier": ("auto",), "verbosity": ("low",), "summary": (None, "auto"),
    "repetition_penalty": (1.1,), "min_p": (0.1,), "ignore_eos": (False,), "stream": (True, False), "name": ("f", "n1"),
}  # fmt: skip

# Without some of these nothing can be answered; without others an answer may be as long as the context.
NEARLY_ALWAYS = {
    "model", "max_tokens", "max_output_tokens", "options", "input", "ChatMessage.content", "ContentPart.text", "documents",
    "from", "prompt",
}  # fmt: skip


class Values:
    """`known`: more of what is plausible, by field; ids of things that the server holds."""

    def __init__(self, chance: random.Random, known: Mapping[str, Sequence[Any]]) -> None:
        self._chance = chance
        self._plausible: dict[str, Sequence[Any]] = {**PLAUSIBLE, **known}

    def of_struct(self, struct: type) -> dict[str, Any]:
        return self._of(inspect.type_info(struct), "", 0)

    def _of(self, kind: inspect.Type, name: str, depth: int) -> Any:
        chance = self._chance
        match kind:
            case inspect.StructType():
                return self._fields(kind, depth)
            case inspect.UnionType():
                return self._of(
                    chance.choice([one for one in kind.types if not isinstance(one, inspect.NoneType)]), name, depth
                )
            case inspect.LiteralType():
                return chance.choice(kind.values)
            case inspect.BoolType():
                return chance.random() < 0.5
            case inspect.IntType():
                low = kind.ge if kind.ge is not None else 0
                return chance.choice((low, max(low, 0) + 1, max(low, 0) + chance.randrange(9)))
            case inspect.FloatType():
                low, high = (0.0 if bound is None else bound for bound in (kind.ge, kind.le))
                return chance.choice((0.0, 0.5, 1.0)) if low <= 0 and high >= 1 else (low + high) / 2 or 1.0
            case inspect.StrType():
                return chance.choice(TEXTS)
            case inspect.ListType():
                return [
                    self._of(kind.item_type, name, depth + 1) for _ in range(chance.randint(1, 2) if depth < 5 else 0)
                ]
            case inspect.DictType():
                return {"a": self._of(kind.value_type, name, depth + 1)} if chance.random() < 0.5 else {}
            case inspect.AnyType():
                return chance.choice((None, "x", 1, {"a": 1}))
            case _:
                return None

    def _fields(self, struct: inspect.StructType, depth: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for field in struct.fields:
            name = field.encode_name
            full_name = f"{struct.cls.__name__}.{name}"
            nearly_always = name in NEARLY_ALWAYS or full_name in NEARLY_ALWAYS
            share = 1.0 if field.required else 0.97 if nearly_always else 0.1 if depth < 4 else 0.0
            if self._chance.random() >= share:
                continue
            plausible = self._plausible.get(full_name, self._plausible.get(name))
            if plausible is not None:
                value[name] = copy.deepcopy(self._chance.choice(plausible))
            else:
                value[name] = self._of(field.type, name, depth + 1)
        return value

    def spoiled(self, value: Any) -> Any:
        """With one to three places of it changed into what nobody expects there."""
        value = copy.deepcopy(value)
        for _ in range(self._chance.choice((1, 1, 2, 3))):
            places = list(_places(value))
            if not places:
                return self._nasty()
            holder, key = self._chance.choice(places)
            self._spoil(holder, key)
        return value

    def _spoil(self, holder: Any, key: Any) -> None:
        match self._chance.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[self._chance.choice(("unknown", "\0", "", "a" * 300, "type", "🙂"))] = self._nasty()
            case 2 if isinstance(holder, list):
                holder += copy.deepcopy([holder[key]] * self._chance.choice((1, 40)))
            case 3:
                holder[key] = [holder[key]]
            case 4:
                holder[key] = {"a": holder[key]}
            case _:
                holder[key] = self._nasty()

    def _nasty(self) -> Any:
        return copy.deepcopy(self._chance.choice(NASTY))


def _places(value: Any) -> Any:
    """Every (holder, key) of the tree."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def to_json(value: Any) -> bytes:
    """As json.dumps writes it: NaN and lone surrogates included."""
    text = json.dumps(value)
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text.encode()
