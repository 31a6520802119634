"""The dialect told from a chat template. Each sign here is the line of a model's template that writes a call."""

from __future__ import annotations

import pytest

from trivium.dialects.detect import CALLS, REASONING, detect
from trivium.dialects.tool_prompt import (
    with_calls_as_text,
    with_results_as_text,
    with_single_calls,
    with_tool_prompt,
)

LINES = {
    "hermes": '{{- \'\\n<tool_call>\\n{"name": "\' }}{{ call.name }}',
    "qwen3_coder": "{{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}",
    "llama3_json": "<|start_header_id|>{{- '{\"name\": \"' + call.name + '\", ' }}{{- '\"parameters\": ' }}",
    "pythonic": "<|header_start|>assistant<|header_end|>",
    "mistral": "{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + arguments }}",
    "mistral_list": "{{- '[TOOL_CALLS][' }}",
    "deepseek_v3": "{{- '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>' + name + '\\n```json\\n' }}",
    "deepseek_v31": "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>'}}",
    "deepseek_v32": "{%- set dsml_token = '｜DSML｜' -%}{{- '<' + dsml_token + 'function_calls>' -}}",
    "gemma4": "{{- '<|tool_call>call:' + function['name'] + '{' -}}",
    "functiongemma": "{{- '<start_function_call>call:' + name -}}",
    "glm": "{{ '\\n<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>",
    "kimi_k2": "<|tool_calls_section_begin|>",
    "minimax": "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}<tool_call>",
    "minimax_m1": "{{ '<tool_calls>\\n' }}",
    "seed_oss": "{%- set toolcall_begin_token = '<seed:tool_call>' -%}<function=",
    "lfm2": '{{- "<|tool_call_start|>[" + calls }}',
    "granite": "respond only with <|tool_call|> followed by a JSON list",
    "nemotron": "{{- '<TOOLCALL>[' -}}",
    "harmony": "<|start|>assistant<|channel|>final<|message|>",
}


def test_there_is_a_line_for_every_dialect() -> None:
    assert set(LINES) == {*CALLS, "harmony"}


@pytest.mark.parametrize("name", LINES)
def test_the_template_tells_how_calls_are_written(name: str) -> None:
    assert detect(f"{{% if x %}}{LINES[name]}{{% endif %}}").name == name


@pytest.mark.parametrize("name", REASONING)
def test_the_template_tells_how_reasoning_is_marked(name: str) -> None:
    marks = REASONING[name]
    assert detect(f"content.split('{marks.end}')").reasoning == marks
    assert detect("no reasoning here").reasoning is None


def test_tokens_tell_where_the_template_does_not() -> None:
    assert detect("", is_token=lambda mark: mark == "[TOOL_CALLS]").name == "mistral"
    assert detect("<tool_call>", is_token=lambda mark: mark == "[TOOL_CALLS]").name == "hermes"


def test_what_is_asked_for_goes_before_what_is_found() -> None:
    asked = detect(LINES["harmony"] + "</think>", "mistral", "none")
    assert (asked.name, asked.reasoning) == ("mistral", None)


TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {}}}]


def test_a_model_whose_template_knows_no_tools_is_told_of_them_in_words() -> None:
    user = {"role": "user", "content": "time?"}
    form = CALLS["deepseek_v31"].form
    system, same = with_tool_prompt([user], TOOLS, form, takes_system=True)
    assert system["role"] == "system" and '{"name": "now", "parameters": {}}' in system["content"]
    assert form.before in system["content"] and form.after in system["content"]
    assert same == user
    (both,) = with_tool_prompt([user], TOOLS, form, takes_system=False)
    assert both["role"] == "user" and both["content"].startswith("time?\n\n") and "now" in both["content"]
    spoken = [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, user]
    assert with_tool_prompt(spoken, TOOLS, form, takes_system=True)[0]["content"].startswith("Be brief.\n\n")


def test_calls_of_one_turn_are_told_one_by_one_with_their_results() -> None:
    calls = [{"id": id, "function": {"name": id, "arguments": {}}} for id in "ab"]
    user, later = {"role": "user", "content": "u"}, {"role": "user", "content": "v"}
    results = [{"role": "tool", "tool_call_id": id, "content": f"result {id}"} for id in "ba"]
    turn = {"role": "assistant", "content": "Wait.", "tool_calls": calls}
    assert with_single_calls([user, turn, *results, later]) == [
        user,
        {"role": "assistant", "content": "Wait.", "tool_calls": [calls[0]]},
        results[1],
        {"role": "assistant", "content": "", "tool_calls": [calls[1]]},
        results[0],
        later,
    ]


@pytest.mark.parametrize("name", [name for name, syntax in CALLS.items() if not syntax.bare_openers])
def test_calls_written_out_are_read_as_calls(name: str) -> None:
    call = {"function": {"name": "now", "arguments": '{"zone": "é"}'}}
    turn = {"role": "assistant", "content": "Wait.", "tool_calls": [call, call]}
    dialect = detect("", name)
    assert dialect.call_form is not None
    (said,) = with_calls_as_text([turn], dialect.call_form)
    parser = dialect.parser({"now": {}}, in_reasoning=False)
    assert parser is not None
    parts = [*parser.feed(said["content"]), *parser.finish()]
    assert [getattr(part, "name", "") for part in parts if hasattr(part, "name")] == ["now", "now"]
    assert parser.num_malformed == 0


def test_results_written_out_are_the_users_words() -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "noon"}]}
    assert with_results_as_text([result]) == [{"role": "user", "content": "<tool_response>\nnoon\n</tool_response>"}]
