"""Structural tags: free text with parts that must have a form, in the JSON that xgrammar gave them.

Both shapes are read: `{"structures": [{"begin", "schema", "end"}], "triggers": […]}` and `{"format": {"type": …}}`.
"""

from __future__ import annotations

from typing import Any

from trivium.grammar.json_schema import parse_json, prepare_schema
from trivium.grammar.lark import ANY_TEXT, LarkWriter, either, sequence
from trivium.grammar.regex import portable, whole
from trivium.grammar.rules import lark_rules
from trivium.types.errors import InvalidRequestError

WHAT = "the structural tag"
MAX_DEPTH = 64


def tag_expression(text: str, writer: LarkWriter) -> str:
    tag = parse_json(text, WHAT)
    if not isinstance(tag, dict):
        raise InvalidRequestError(f"{WHAT} must be an object")
    if "structures" in tag:
        tag = {"format": _modern(tag)}
    return _Translator(writer).expression(_field(tag, "format", dict), 0)


def _modern(tag: dict[str, Any]) -> dict[str, Any]:
    tags = [
        {
            "type": "tag",
            "begin": structure.get("begin"),
            "content": {"type": "json_schema", "json_schema": structure.get("schema")},
            "end": structure.get("end"),
        }
        for structure in _field(tag, "structures", list)
        if isinstance(structure, dict)
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _Translator:
    def __init__(self, writer: LarkWriter) -> None:
        self._writer = writer

    def expression(self, form: dict[str, Any], depth: int) -> str:
        if depth > MAX_DEPTH:
            raise InvalidRequestError(f"{WHAT} is nested more than {MAX_DEPTH} deep")
        writer = self._writer
        match form.get("type"):
            case "const_string":
                return writer.literal(_field(form, "value", str))
            case "json_schema":
                _refuse(form, "style", "json")
                _refuse(form, "excludes", [])
                return writer.json_schema(prepare_schema(_field(form, "json_schema", (dict, bool))))
            case "regex":
                return writer.regex(portable(whole(_field(form, "pattern", str))))
            case "grammar":
                return writer.lark(lark_rules(_field(form, "grammar", str)))
            case "any_text":
                return writer.terminal(_free_text(form))
            case "token":
                return self._token(form.get("token"))
            case "sequence":
                return self._sequence(_forms(form, "elements"), depth)
            case "or":
                return either([self.expression(element, depth + 1) for element in _forms(form, "elements")])
            case "optional":
                return f"({self._content(form, depth)})?"
            case "star":
                return f"({self._content(form, depth)})*"
            case "plus":
                return f"({self._content(form, depth)})+"
            case "repeat":
                least, most = _field(form, "min", int), _field(form, "max", int)
                return f"({self._content(form, depth)}){{{least},{'' if most == -1 else most}}}"
            case "tag":
                return self._tag(form, depth)
            case "triggered_tags":
                return self._triggered_tags(form, depth)
            case "tags_with_separator":
                return self._tags_with_separator(form, depth)
            case other:
                raise InvalidRequestError(f"{WHAT} has a format of type {str(other)[:80]!r}, which is not supported")

    def _content(self, form: dict[str, Any], depth: int) -> str:
        return self.expression(_field(form, "content", dict), depth + 1)

    def _token(self, token: Any) -> str:
        return f"<[{token}]>" if isinstance(token, int) and token >= 0 else self._writer.literal(str(token))

    def _sequence(self, elements: list[dict[str, Any]], depth: int) -> str:
        parts: list[str] = []
        place = 0
        while place < len(elements):
            element = elements[place]
            after = elements[place + 1] if place + 1 < len(elements) else {}
            if element.get("type") == "any_text" and after.get("type") == "const_string":
                _refuse(element, "excludes", [])
                parts.append(self._writer.text_until(_field(after, "value", str)))
                place += 2
                continue
            parts.append(self.expression(element, depth + 1))
            place += 1
        return sequence(parts)

    def _tag(self, form: dict[str, Any], depth: int, trigger: str = "") -> str:
        """What comes after the trigger, with which the tag begins."""
        begin = _field(form, "begin", str).removeprefix(trigger)
        content = _field(form, "content", dict)
        end: Any = form.get("end")
        ends: list[Any] = end if isinstance(end, list) else [end]
        if not all(isinstance(end, str) for end in ends) or not ends:
            raise InvalidRequestError(f"{WHAT}: end must be a string or a list of strings")
        if content.get("type") == "any_text" and ends != [""]:
            rest = either([self._writer.text_until(end) for end in ends])
        else:
            closing = either([self._writer.literal(end) for end in ends])
            rest = sequence([self.expression(content, depth + 1), closing])
        return self._writer.rule(sequence([self._writer.literal(begin) if begin else "", rest]))

    def _triggered_tags(self, form: dict[str, Any], depth: int) -> str:
        """Free text in which each trigger begins one of the tags."""
        _refuse(form, "excludes", [])
        triggers = [trigger for trigger in _field(form, "triggers", list) if isinstance(trigger, str) and trigger]
        tags = _forms(form, "tags")
        triggered: list[str] = []
        for trigger in triggers:
            mine = [tag for tag in tags if str(tag.get("begin")).startswith(trigger)]
            if mine:
                rests = either([self._tag(tag, depth + 1, trigger) for tag in mine])
                triggered.append(sequence([self._writer.text_until(trigger), rests]))
        unreachable = [
            tag.get("begin") for tag in tags if not any(str(tag.get("begin")).startswith(one) for one in triggers)
        ]
        if unreachable or not triggered:
            raise InvalidRequestError(f"{WHAT}: no trigger begins the tag {str((unreachable or [None])[0])[:80]!r}")
        once = self._writer.rule(either(triggered))
        rest = self._writer.terminal(ANY_TEXT)
        match bool(form.get("at_least_one")), bool(form.get("stop_after_first")):
            case True, True:
                return once
            case False, True:
                return either([once, rest])
            case at_least_one, _:
                return sequence([f"{once}{'+' if at_least_one else '*'}", rest])

    def _tags_with_separator(self, form: dict[str, Any], depth: int) -> str:
        one = either([self._tag(tag, depth + 1) for tag in _forms(form, "tags")])
        separator = _field(form, "separator", str)
        more = "" if form.get("stop_after_first") else f"({sequence([self._writer.literal(separator), one])})*"
        some = sequence([one, more])
        return some if form.get("at_least_one") else f"({some})?"


def _free_text(form: dict[str, Any]) -> str:
    _refuse(form, "max_tokens", None)
    _refuse(form, "max_chars", None)
    _refuse(form, "excludes", [])
    return ANY_TEXT


def _forms(form: dict[str, Any], key: str) -> list[dict[str, Any]]:
    forms: list[dict[str, Any]] = _field(form, key, list)
    if not forms or not all(isinstance(element, dict) for element in forms):
        raise InvalidRequestError(f"{WHAT}: {key} must be a list of objects that is not empty")
    return forms


def _field(form: dict[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    value = form.get(key)
    if not isinstance(value, kind):
        raise InvalidRequestError(f"{WHAT}: {form.get('type', 'it')} must have a field {key} of the right type")
    return value


def _refuse(form: dict[str, Any], key: str, default: object) -> None:
    if form.get(key, default) != default:
        raise InvalidRequestError(f"{WHAT}: {key} of {form.get('type')} is not supported")
