"""Answers in the manner of each dialect, and what is in them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WRITE = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}
ANY = {
    "type": "object",
    "properties": {
        "on": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object"},
        "ratio": {"type": ["number", "null"]},
        "code": {"type": "string"},
    },
}
TOOLS: dict[str, Any] = {"get_weather": WEATHER, "write_file": WRITE, "set_any": ANY, "now": {}}


class Answer(Struct, frozen=True):
    name: str
    calls: str  # the dialect's name
    text: str
    content: str = ""
    reasoning: str = ""
    made: tuple[tuple[str, dict[str, Any]], ...] = ()  # calls: name and arguments
    think: str | None = None  # the reasoning's dialect
    in_reasoning: bool = False
    ids: tuple[str | None, ...] | None = None


PARIS = ("get_weather", {"city": "Paris"})
OSLO = ("get_weather", {"city": "Oslo", "days": 3})
CODE = 'def f(x):\n    return "<b>" if x < 1 else {"a": [x]}\n'
WRITES = ("write_file", {"path": "a b.py", "text": CODE})
NOW: tuple[str, dict[str, Any]] = ("now", {})
ANYTHING = ("set_any", {"on": True, "tags": ["é", "b"], "where": {"x": {"y": 1}}, "ratio": None, "code": "12"})

ANSWERS = [
    Answer("plain", "hermes", "Hello <b>world</b>. ", content="Hello <b>world</b>. "),
    Answer(
        "hermes",
        "hermes",
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        content="Let me look.",
        made=(PARIS,),
    ),
    Answer(
        "hermes two",
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {"city": "Oslo", "days": 3}, "name": "get_weather"}\n</tool_call>',
        made=(PARIS, OSLO),
    ),
    Answer(
        "hermes after thought",
        "hermes",
        '<think>\nParis, "I" {guess}.\n</think>\n\n<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>\n',
        reasoning='Paris, "I" {guess}.',
        made=(PARIS,),
        think="think",
    ),
    Answer("hermes without arguments", "hermes", '<tool_call>{"name": "now"}</tool_call>', made=(NOW,)),
    Answer(
        "hermes with arguments as a string",
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        made=(PARIS,),
    ),
    Answer(
        "hermes with a brace missing",
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}\n</tool_call>',
        made=(PARIS,),
    ),
    Answer(
        "hermes whose end was a token",
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n',
        made=(PARIS,),
    ),
    Answer(
        "hermes nested",
        "hermes",
        '<tool_call>{"name": "write_file", "arguments": {"path": "a b.py", "text": '
        '"def f(x):\\n    return \\"<b>\\" if x < 1 else {\\"a\\": [x]}\\n"}}</tool_call>Done.',
        content="Done.",
        made=(WRITES,),
    ),
    Answer("think in the prompt", "hermes", "I see.\n</think>\n\nYes.", "Yes.", "I see.", (), "think", True),
    Answer("think never ended", "hermes", "<think>\nI see. And", reasoning="I see. And", think="think"),
    Answer("nothing thought", "hermes", "<think>\n\n</think>\n\nYes. ", content="Yes. ", think="think"),
    Answer("think twice", "hermes", "<think>a</think><think>b</think>c", content="c", reasoning="ab", think="think"),
    Answer("tag in prose", "hermes", "Use <think> and </think>.", "Use <think> and </think>.", think="think"),
    Answer(
        "qwen3 coder",
        "qwen3_coder",
        "I write.\n<tool_call>\n<function=write_file>\n<parameter=path>\na b.py\n</parameter>\n<parameter=text>\n"
        + CODE
        + "\n</parameter>\n</function>\n</tool_call>",
        content="I write.",
        made=(WRITES,),
    ),
    Answer(
        "qwen3 coder types",
        "qwen3_coder",
        '<tool_call>\n<function=set_any>\n<parameter=on>\nTrue\n</parameter>\n<parameter=tags>\n["é", "b"]\n</parameter>\n'
        '<parameter=where>\n{"x": {"y": 1}}\n</parameter>\n<parameter=ratio>\nnull\n</parameter>\n'
        "<parameter=code>\n12\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        made=(ANYTHING, NOW),
    ),
    Answer(
        "llama json",
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        made=(PARIS,),
    ),
    Answer(
        "llama json, tagged, two",
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}; '
        '{"name": "now", "parameters": {}}',
        made=(PARIS, NOW),
    ),
    Answer("llama built-in", "llama3_json", '<|python_tag|>get_weather.call(city="Paris")', made=(PARIS,)),
    Answer(
        "llama json of another kind",
        "llama3_json",
        '{"name": "Bob", "age": 4}\nThat is Bob.',
        content='{"name": "Bob", "age": 4}\nThat is Bob.',
    ),
    Answer(
        "pythonic",
        "pythonic",
        "[get_weather(city='Paris'), set_any(on=True, tags=[\"é\", 'b'], where={'x': {'y': 1}}, ratio=None, code=\"12\")]",
        made=(PARIS, ANYTHING),
    ),
    Answer("pythonic, in JSON", "pythonic", '[{"name": "get_weather", "arguments": {"city": "Paris"}}]', made=(PARIS,)),
    Answer("a list that is no call", "pythonic", "[1, 2] and [now()]", content="[1, 2] and [now()]"),
    Answer(
        "lfm2",
        "lfm2",
        'Wait.<|tool_call_start|>[get_weather(city="Oslo", days=3), now()]<|tool_call_end|>Checking.',
        content="Wait.Checking.",
        made=(OSLO, NOW),
    ),
    Answer(
        "mistral list",
        "mistral_list",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "a1b2c3d4e"}, {"name": "now", "arguments": {}}]',
        made=(PARIS, NOW),
    ),
    Answer(
        "mistral",
        "mistral",
        'Sure.[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}',
        content="Sure.",
        made=(PARIS, NOW),
        ids=("a1b2c3d4e", None),
    ),
    Answer(
        "mistral after thought",
        "mistral",
        "[THINK]Hm.[/THINK]Sure.",
        content="Sure.",
        reasoning="Hm.",
        think="mistral",
    ),
    Answer(
        "deepseek r1",
        "deepseek_v3",
        "Hm.</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        reasoning="Hm.",
        made=(PARIS, NOW),
        think="think",
        in_reasoning=True,
    ),
    Answer(
        "deepseek v3.1",
        "deepseek_v31",
        'Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo", "days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        content="Yes.",
        made=(PARIS, OSLO),
    ),
    Answer(
        "deepseek v3.2",
        "deepseek_v32",
        '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="set_any">\n'
        '<｜DSML｜parameter name="on" string="false">true</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="tags" string="false">["é", "b"]</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="where" string="false">{"x": {"y": 1}}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="ratio" string="false">null</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="code" string="true">12</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        made=(ANYTHING, NOW),
    ),
    Answer(
        "gemma 4",
        "gemma4",
        '<|channel>thought\nHm.\n<channel|><|tool_call>call:set_any{on:true,tags:[<|"|>é<|"|>,<|"|>b<|"|>],'
        'where:{x:{y:1}},ratio:null,code:<|"|>12<|"|>}<tool_call|><|tool_call>call:now{}<tool_call|>',
        reasoning="Hm.",
        made=(ANYTHING, NOW),
        think="gemma4",
    ),
    Answer("gemma 4 with JSON", "gemma4", '<|tool_call>call:get_weather{"city": "Paris"}<tool_call|>', made=(PARIS,)),
    Answer(
        "functiongemma",
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>",
        made=(OSLO,),
    ),
    Answer(
        "glm",
        "glm",
        "\n<think>Hm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        content="I look.",
        reasoning="Hm.",
        made=(OSLO, NOW),
        think="think",
    ),
    Answer(
        "glm code",
        "glm",
        f"<tool_call>write_file<arg_key>path</arg_key><arg_value>a b.py</arg_value><arg_key>text</arg_key><arg_value>{CODE}\n"
        "</arg_value></tool_call>",
        made=(WRITES,),
    ),
    Answer(
        "kimi k2",
        "kimi_k2",
        "Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        content="Look.",
        made=(PARIS, NOW),
        ids=("functions.get_weather:0", "functions.now:1"),
    ),
    Answer(
        "minimax",
        "minimax",
        '<think>\nHm.\n</think>\n\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        reasoning="Hm.",
        made=(OSLO, NOW),
        think="think",
    ),
    Answer(
        "seed oss",
        "seed_oss",
        "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
        "</function>\n</seed:tool_call>",
        reasoning="Hm.",
        made=(PARIS,),
        think="seed",
    ),
    Answer(
        "granite",
        "granite",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        made=(PARIS,),
    ),
    Answer(
        "nemotron",
        "nemotron",
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]</TOOLCALL>',
        made=(PARIS, NOW),
    ),
    Answer(
        "harmony",
        "harmony",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary<|message|>I look it "
        "up.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Paris"}',
        content="I look it up.",
        reasoning="Need the weather.",
        made=(PARIS,),
    ),
    Answer(
        "harmony with the recipient first",
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        reasoning="Hm.",
        made=(NOW,),
    ),
    Answer(
        "harmony final",
        "harmony",
        "<|channel|>analysis<|message|>User says hi.<|end|><|start|>assistant<|channel|>final<|message|>Hi! <b>",
        content="Hi! <b>",
        reasoning="User says hi.",
    ),
]

# What looks like a call and is none: all of it is content.
MALFORMED = [
    ("hermes", "<tool_call>get the weather</tool_call>"),
    ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"city": "Paris"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "get_wea'),
    ("hermes", "Ends with <tool_ca"),
    ("hermes", "<tool_call>"),
    ("qwen3_coder", "<tool_call>\n<func=now>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=two words>\n</tool_call>"),
    ("llama3_json", '<|python_tag|>print("hi")'),
    ("llama3_json", '{"name": "get_weather", "age": 3}'),
    ("pythonic", "[get_weather]"),
    ("pythonic", "[unknown(a=1)]"),
    ("mistral", "[TOOL_CALLS] of the day"),
    ("deepseek_v31", "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\nno fence"),
    ("kimi_k2", "<|tool_calls_section_begin|>nothing<|tool_calls_section_end|>"),
    ("glm", "<tool_call>two words</tool_call>"),
    ("gemma4", "<|tool_call>now()<tool_call|>"),
    ("gemma4", "<|tool_call>call:now<tool_call|>"),
    ("nemotron", "<TOOLCALL>nothing</TOOLCALL>"),
]
