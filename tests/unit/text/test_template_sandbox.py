"""A hostile chat template reads nothing, changes nothing, and comes to an end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from trivium.text.template import ChatTemplate
from trivium.types.errors import InvalidRequestError

MESSAGES = [{"role": "user", "content": "Hi"}]


def render(source: str, **extra: object) -> str:
    return ChatTemplate({"default": source}, {}, "a test").render(MESSAGES, **extra)


REFUSED = "chat template (was stopped|cannot render)"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ (messages | attr('__class__')).x }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self._TemplateReference__context.environment.step.__func__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
    ],
)
def test_nothing_beyond_the_messages_is_read(source: str) -> None:
    with pytest.raises(InvalidRequestError, match=REFUSED):
        render(source)


@pytest.mark.parametrize(
    "source",
    ["{{ strftime_now.__globals__ }}", "{{ '{0.__class__}'.format(messages) }}", "{{ messages[0].__init__ }}"],
)
def test_an_attribute_of_python_is_printed_as_nothing(source: str) -> None:
    assert render(source) == ""


@pytest.mark.parametrize(
    "source", ["{{ messages.append(1) }}", "{{ messages[0].update(a=1) }}", "{{ messages.clear() }}"]
)
def test_what_is_given_is_not_changed(source: str) -> None:
    with pytest.raises(InvalidRequestError, match=REFUSED):
        render(source)


TEN_LOOPS = "{% for a in range(99999) %}" * 10 + "{% endfor %}" * 10
DOUBLING = "{{% set x = 'aaaaaaaa' %}}{}".format


@pytest.mark.parametrize(
    "source",
    [
        TEN_LOOPS,
        "{% for a in range(999999999) %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{{ loop([[1]]) }}{% endfor %}",
        "{{ 'a' * 99999999999 }}",
        "{{ 99999999999 * [1] }}",
        "{{ 9 ** (9 ** (9 ** 9)) }}",
        "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        DOUBLING("{% set x = x + x %}" * 60),
        DOUBLING("{% set x = x ~ x %}" * 60),
        DOUBLING("{% set x %}{{ x }}{{ x }}{% endset %}" * 60),
        DOUBLING("{% set x = [x, x] | join %}" * 60),
        DOUBLING("{% set x = ''.join([x, x]) %}" * 60),
        DOUBLING("{% set x = x | replace('a', x) %}" * 9),
        DOUBLING("{% set x = x.replace('a', x) %}" * 9),
        "{% set l = [1] %}" + "{% set l = l + l %}" * 60,
        "{% for i in range(99999) %}{{ 'aaaaaaaaaa' * 999 }}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'a' | indent(999999999, first=true) }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a'.zfill(999999999) }}",
        "{{ (1).to_bytes(999999999) }}",
        "{{ lipsum(n=99999999) }}",
    ],
)
def test_no_template_runs_on_or_grows_without_end(source: str) -> None:
    with pytest.raises(InvalidRequestError, match=REFUSED):
        render(source)


@pytest.mark.parametrize("filter", ["center(999999999)", "batch(999999999, 1) | list", "wordwrap(1)"])
def test_filters_that_only_pad_are_not_there(filter: str) -> None:
    with pytest.raises(Exception, match="No filter named"):
        render("{{ 'a' | " + filter + " }}")


def test_a_stopped_template_renders_the_next_time() -> None:
    template = ChatTemplate(
        {"default": "{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}ok"}, {}, "t"
    )
    with pytest.raises(InvalidRequestError, match="more than 2 seconds"):
        template.render(MESSAGES, n=99999)
    assert template.render(MESSAGES, n=3) == "ok"


def test_long_conversations_are_far_from_the_limits() -> None:
    source = (
        "{% set ns = namespace(text='') %}{% for m in messages %}"
        "{% set ns.text = ns.text + m.role ~ ': ' ~ m.content | replace('x', 'yy') %}{% endfor %}{{ ns.text }}"
    )
    messages = [{"role": "user", "content": "x" * 1000}] * 1000
    assert len(ChatTemplate({"default": source}, {}, "a test").render(messages)) == 1000 * 2006


def test_threads_render_what_one_renders() -> None:
    template = ChatTemplate({"default": "{% for i in range(n) %}{{ i }},{% endfor %}"}, {}, "a test")
    alone = [template.render(MESSAGES, n=n) for n in range(200)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda n: template.render(MESSAGES, n=n), range(200))) == alone
