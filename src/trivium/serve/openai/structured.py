"""The fields by which clients ask for answers of a given form: OpenAI's, vLLM's, SGLang's, llama.cpp's and TGI's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trivium.llm.structured import FORMS, IGNORED, StructuredOutputsParams
from trivium.serve.errors import invalid
from trivium.serve.openai.protocol import GenerationRequest, ResponseFormat

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # of a schema, as OpenAI has it

# Fields that hold one form each.
FORM_OF_FIELD = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}


def structured_outputs(request: GenerationRequest) -> StructuredOutputsParams | None:
    """None: the answer may have any form."""
    asked = list(_asked(request))
    if len(asked) > 1:
        first, second = asked[0].param, asked[1].param
        raise invalid(f"{first} and {second} both say what form the answer must have; only one may", second)
    return asked[0] if asked else None


def _asked(request: GenerationRequest) -> Iterator[StructuredOutputsParams]:
    if request.response_format is not None and (found := _response_format(request.response_format)):
        yield found
    for field, form in FORM_OF_FIELD.items():
        if (value := getattr(request, field)) is not None:
            yield _params(field, **{form: value})
    if request.structured_outputs is not None:
        yield _vllm(request.structured_outputs)
    if request.grammar is not None and request.grammar != "":  # llama.cpp's clients send an empty one for none
        yield _llama_cpp_or_tgi(request.grammar)


def _response_format(wanted: ResponseFormat) -> StructuredOutputsParams | None:
    where = "response_format"
    match wanted.type:
        case "text":
            return None
        case "json_object":
            if wanted.schema is not None:  # llama.cpp's way
                return _params(where, json=wanted.schema)
            return _params(where, json_object=True)
        case "json_schema":
            schema = wanted.json_schema
            if schema is None:
                raise invalid(f"{where} of type 'json_schema' must have a json_schema", f"{where}.json_schema")
            if schema.name is None or not NAME.fullmatch(schema.name):
                raise invalid(
                    f"{where}.json_schema.name must have 1 to 64 letters, digits, _ and -", f"{where}.json_schema.name"
                )
            if schema.schema is None:
                raise invalid(f"{where}.json_schema must have a schema", f"{where}.json_schema.schema")
            return _params(where, json=schema.schema)
        case "structural_tag":
            tag: dict[str, Any] = {} if wanted.format is None else {"format": wanted.format}
            if wanted.structures is not None:
                tag = {"structures": wanted.structures, "triggers": wanted.triggers}
            return _params(where, structural_tag=tag)
        case "regex" | "grammar" as form:
            return _params(where, **{form: getattr(wanted, form)})
        case other:
            raise invalid(
                f"{where}.type must be text, json_object, json_schema, structural_tag, regex or grammar,"
                f" but is {other[:80]!r}",
                f"{where}.type",
            )


def _vllm(value: Any) -> StructuredOutputsParams:
    where = "structured_outputs"
    if not isinstance(value, dict):
        raise invalid(f"{where} must be an object", where)
    for key in value:
        if key not in FORMS and key not in IGNORED:
            raise invalid(f"{where} knows {', '.join(FORMS)}, but not {key[:80]!r}", where)
    return _params(where, **{form: value.get(form) for form in FORMS})


def _llama_cpp_or_tgi(value: Any) -> StructuredOutputsParams:
    match value:
        case str():
            return _params("grammar", grammar=value)
        case {"type": "json" | "json_object" | "json_schema", "value": schema}:
            return _params("grammar", json=schema)
        case {"type": "regex", "value": pattern}:
            return _params("grammar", regex=pattern)
    raise invalid("grammar must be a string, or {'type': 'json' or 'regex', 'value': …}", "grammar")


def _params(field: str, **form: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**form, param=field)
