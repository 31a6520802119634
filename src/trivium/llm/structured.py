"""What form an answer must have, in the field names that vLLM's users know. Checked when made."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.types.errors import InvalidRequestError
from trivium.types.request import Grammar, GrammarKind, Preamble

FORMS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
# They tune how vLLM makes answers obey, and have no meaning here.
IGNORED = (
    "disable_fallback",
    "disable_any_whitespace",
    "disable_additional_properties",
    "whitespace_pattern",
    "backend",
)
ANY_OBJECT = '{"type": "object"}'


@dataclass
class StructuredOutputsParams:
    """Exactly one of the forms. Answers then always have it, unless max_tokens cuts them short."""

    json: str | Mapping[str, Any] | bool | type | None = None  # a JSON schema, or a pydantic model
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None  # GBNF ("root ::= …") or Lark ("start: …")
    json_object: bool | None = None  # any JSON object
    structural_tag: str | Mapping[str, Any] | None = None  # free text with parts that have a form
    preamble: Preamble | None = None  # free text before all that, such as reasoning
    param: str = "structured_outputs"  # the field that errors name

    def __post_init__(self) -> None:
        given = [form for form in FORMS if getattr(self, form) not in (None, False)]
        if self.json is False:
            given.append("json")
        if len(given) != 1:
            named = ", ".join(given) or "none"
            raise self._wrong(f"exactly one of {', '.join(FORMS)} must be given, but {named} is")
        (self._form,) = given

    def lower(self) -> Grammar:
        kind, text = self._kind_and_text()
        return Grammar(kind, text, self.preamble, self.param)

    def as_format(self) -> dict[str, Any] | None:
        """The same as a part of a structural tag; None: it cannot be one."""
        match self._form:
            case "json" | "json_object":
                try:
                    return {"type": "json_schema", "json_schema": json_module.loads(self._kind_and_text()[1])}
                except (ValueError, RecursionError):  # a string that is no JSON: what is wrong is told when it is used
                    return None
            case "regex":
                return {"type": "regex", "pattern": self.regex}
            case "grammar":
                return {"type": "grammar", "grammar": self.grammar}
            case "choice":
                return {"type": "or", "elements": [{"type": "const_string", "value": one} for one in self.choice or ()]}
        return None

    def _kind_and_text(self) -> tuple[GrammarKind, str]:
        match self._form:
            case "json":
                return GrammarKind.JSON_SCHEMA, self._json_text(self._schema())
            case "json_object":
                return GrammarKind.JSON_SCHEMA, ANY_OBJECT
            case "structural_tag":
                return GrammarKind.STRUCTURAL_TAG, self._json_text(self.structural_tag)
            case "choice":
                choices = self.choice
                if isinstance(choices, str) or not isinstance(choices, Sequence):
                    raise self._wrong("choice must be a list of strings")
                return GrammarKind.CHOICE, self._json_text(list(choices))
            case form:
                text = getattr(self, form)
                if not isinstance(text, str):
                    raise self._wrong(f"{form} must be a string")
                return (GrammarKind.REGEX if form == "regex" else GrammarKind.RULES), text

    def _schema(self) -> Any:
        make_schema = getattr(self.json, "model_json_schema", None)  # pydantic's
        return self.json if make_schema is None else make_schema()

    def _json_text(self, value: Any) -> str:
        """A string is taken to be JSON already."""
        if isinstance(value, str):
            return value
        try:
            return json_module.dumps(value, allow_nan=False)
        except RecursionError:
            raise self._wrong(f"{self._form} is nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise self._wrong(f"{self._form} cannot be written as JSON: {error}") from None

    def _wrong(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self.param}: {message}", param=self.param)


def read_structured_outputs(value: object) -> StructuredOutputsParams | None:
    """As it is, or from a map with its fields."""
    if value is None or isinstance(value, StructuredOutputsParams):
        return value
    if isinstance(value, Mapping):
        unknown = sorted(set(map(str, value)) - {*FORMS, *IGNORED})
        if not unknown:
            forms: dict[str, Any] = {form: value.get(form) for form in FORMS}
            return StructuredOutputsParams(**forms)
        problem = f"there is no form {unknown[0][:80]!r}; there are {', '.join(FORMS)}"
    else:
        problem = "it must be a StructuredOutputsParams or a map"
    raise InvalidRequestError(f"structured_outputs: {problem}", param="structured_outputs")
