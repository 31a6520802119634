"""Chat templates render as transformers renders them, and take messages in the forms that clients send."""

from __future__ import annotations

import copy
import json
from enum import StrEnum
from pathlib import Path, PosixPath
from typing import Any

import gguf
import pytest
import tiny_templates
from transformers.utils.chat_template_utils import render_jinja_template

from trivium.formats.source import open_source
from trivium.text.template import ChatTemplate
from trivium.types.errors import InvalidRequestError, ModelFileError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Weather <now> & later in a "city"',
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "é城"}}},
        },
    }
]


def call(arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}],
    }


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "  Hello <b> & é 日本\n"}],
    "many turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "More"},
    ],
    "system": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "More"},
    ],
    "reasoning": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?", "reasoning": "Hmm."},
        {"role": "user", "content": "More"},
    ],
    "tools": [
        {"role": "user", "content": "Weather?"},
        call({"city": "Paris"}),
        {"role": "tool", "content": '{"t": 20}', "tool_call_id": "c1"},
    ],
}


def make(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, SPECIAL, "a test")


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", tiny_templates.ALL)
def test_renders_what_transformers_renders(template: str, conversation: str) -> None:
    source, messages = tiny_templates.ALL[template], CONVERSATIONS[conversation]
    compared = 0
    for tools in (None, TOOLS):
        for extra in ({}, {"enable_thinking": False}, {"documents": [{"text": "a document"}]}):
            for prompt in (True, False):
                arguments = {"tools": tools, "add_generation_prompt": prompt, **extra}
                try:
                    [expected], _ = render_jinja_template([messages], chat_template=source, **arguments, **SPECIAL)
                except Exception:
                    continue  # messages that the template was not written for: see the tests of errors
                assert make(source).render(messages, **arguments) == expected
                compared += 1
    assert compared or (template, conversation) in {
        ("gemma", "system"),
        ("gemma", "tools"),
        ("mistral", "tools"),
        ("thinker", "tools"),
    }


def test_the_messages_of_the_caller_are_left_as_they_are() -> None:
    messages = [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, call('{"city": "Rome"}')]
    before = copy.deepcopy(messages)
    make(tiny_templates.LLAMA3).render(messages)
    assert messages == before


def test_what_the_template_raises_is_the_answer_to_the_request() -> None:
    with pytest.raises(InvalidRequestError, match=r"^Roles must alternate between user and assistant$"):
        make(tiny_templates.GEMMA).render([{"role": "assistant", "content": "first"}])


@pytest.mark.parametrize(
    "source",
    ["{{ messages[5].content }}", "{{ 1 + 'a' }}", "{{ messages.nothing.more }}", "{{ 1 // 0 }}", "{% include 'x' %}"],
)
def test_a_template_that_fails_is_a_sentence(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="chat template cannot render these messages"):
        make(source).render([{"role": "user", "content": "Hi"}])


def test_a_template_that_is_not_jinja_is_a_damaged_model() -> None:
    with pytest.raises(ModelFileError, match="'default' cannot be compiled"):
        make("{% for %}")


def test_parts_of_text_are_joined_for_a_template_that_reads_strings() -> None:
    template = make(tiny_templates.CHATML)
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    joined = template.render([{"role": "user", "content": "one\ntwo"}])
    assert template.render([{"role": "user", "content": parts}]) == joined


def test_parts_are_left_to_a_template_that_reads_them() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "what is it?"}]
    text = make(tiny_templates.GEMMA).render([{"role": "user", "content": parts}], add_generation_prompt=False)
    assert text == "<s><start_of_turn>user\n<image>what is it?<end_of_turn>\n"


def test_a_string_is_made_a_part_for_a_template_that_reads_only_parts() -> None:
    only_parts = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    assert make(only_parts).render([{"role": "user", "content": "hello"}]) == "hello"


def test_a_part_that_is_not_text_is_refused_where_the_template_reads_strings() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(InvalidRequestError, match=r"messages\[0\]\.content\[1\] is of type 'image_url'"):
        make(tiny_templates.CHATML).render([{"role": "user", "content": parts}])


def test_a_developer_is_the_system_unless_the_template_knows_developers() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert "<|im_start|>system\nBe brief." in make(tiny_templates.CHATML).render(messages)
    knowing = "{# developer #}" + tiny_templates.CHATML
    assert "<|im_start|>developer\nBe brief." in make(knowing).render(messages)


def test_arguments_of_past_calls_are_mappings_where_the_template_wants_mappings() -> None:
    template = make(tiny_templates.LLAMA3)
    user = {"role": "user", "content": "Weather?"}
    given_as_text = template.render([user, call('{"city":   "Paris"}')])
    assert given_as_text == template.render([user, call({"city": "Paris"})])
    assert '"parameters": {"city": "Paris"}' in given_as_text
    assert '"parameters": {}' in template.render([user, call("")])


def test_arguments_of_past_calls_are_text_where_the_template_wants_text() -> None:
    template = make(tiny_templates.THINKER)
    for arguments in ({"city": "Paris"}, '{"city": "Paris"}'):
        assert '<call>{"city": "Paris"}!</call>' in template.render([call(arguments)])


@pytest.mark.parametrize("arguments", ["{", "[1]", "3"])
def test_arguments_that_are_not_a_json_object_are_refused(arguments: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[0\]\.tool_calls"):
        make(tiny_templates.LLAMA3).render([call(arguments)])


def test_the_last_message_can_be_left_open() -> None:
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "one, two, "}]
    assert make(tiny_templates.CHATML).render(messages, continue_final_message=True).endswith("assistant\none, two, ")
    assert make(tiny_templates.LLAMA3).render(messages, continue_final_message=True).endswith("\n\none, two,")
    for source in (tiny_templates.CHATML, tiny_templates.LLAMA3, tiny_templates.GEMMA):
        [expected], _ = render_jinja_template([messages], chat_template=source, continue_final_message=True, **SPECIAL)
        assert make(source).render(messages, continue_final_message=True) == expected
    with pytest.raises(InvalidRequestError, match="no text to continue"):
        make(tiny_templates.CHATML).render([], continue_final_message=True)


class Role(StrEnum):
    USER = "user"


def test_only_plain_values_reach_the_template() -> None:
    template = make(tiny_templates.CHATML)
    assert "<|im_start|>user\n" in template.render([{"role": Role.USER, "content": "Hi"}])
    with pytest.raises(InvalidRequestError, match="only JSON values, not a PosixPath"):
        template.render([{"role": "user", "content": PosixPath("x")}])
    with pytest.raises(InvalidRequestError, match=r"messages\[0\] is not an object"):
        template.render(["hello"])  # type: ignore[list-item]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        template.render([{"role": "user", "content": deep}])


def write_gguf(path: Path, templates: str | list[dict[str, str]] | None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<pad>", "<s>", "</s>"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if templates is not None:
        writer.add_chat_template(templates)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


NAMED = [
    {"name": "default", "template": "plain {{ bos_token }}{{ eos_token }}"},
    {"name": "tool_use", "template": "tools {{ tools | length }}"},
]


def test_a_gguf_file_brings_its_template_and_tokens(tmp_path: Path) -> None:
    template = ChatTemplate.from_source(open_source(write_gguf(tmp_path / "one.gguf", "{{ bos_token }}!")))
    assert template.render([]) == "<s>!"
    assert template.origin == "the model's own, from one.gguf"


def test_the_template_for_tools_is_used_when_there_are_tools(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": NAMED, **SPECIAL}))
    for source in (open_source(write_gguf(tmp_path / "named.gguf", NAMED)), open_source(directory)):
        template = ChatTemplate.from_source(source)
        assert template.render([]) == "plain <s></s>"
        assert template.render([], tools=TOOLS) == "tools 1"


def test_a_template_file_comes_before_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "configured", "bos_token": {"content": "<s>"}})
    )
    assert ChatTemplate.from_source(open_source(tmp_path)).render([]) == "configured"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }} from a file")
    assert ChatTemplate.from_source(open_source(tmp_path)).render([]) == "<s> from a file"


def test_a_damaged_list_of_templates_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for listed in ([{"name": "default"}], [3], [{"name": 1, "template": 2}]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
        with pytest.raises(ModelFileError, match="chat_template"):
            ChatTemplate.from_source(open_source(tmp_path))


def test_a_model_without_a_template_gets_chatml_and_says_so(tmp_path: Path) -> None:
    template = ChatTemplate.from_source(open_source(write_gguf(tmp_path / "bare.gguf", None)))
    assert "ChatML" in template.origin and not template.is_own
    assert (
        template.render([{"role": "user", "content": "Hi"}])
        == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


ONE_CALL = """\
{%- for message in messages %}
    {%- if message.tool_calls %}{{ message.tool_calls[0].function.name }}
    {%- else %}{{ message.content }}{% endif %}
{%- endfor %}"""


@pytest.mark.parametrize(
    ("source", "tools", "calls", "several", "system"),
    [
        (tiny_templates.CHATML, False, False, False, True),
        (tiny_templates.LLAMA3, True, True, True, True),
        (tiny_templates.GEMMA, False, False, False, False),
        (ONE_CALL, False, True, False, True),
    ],
)
def test_what_a_template_shows_is_found_out(source: str, tools: bool, calls: bool, several: bool, system: bool) -> None:
    template = make(source)
    assert template.shows_tools == tools
    assert template.shows_calls == calls
    assert template.shows_several_calls == several
    assert template.takes_system == system
