"""The default model, at temperature 1, under schemas of many shapes: every answer that ends validates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from random_schemas import PICKED, random_schema

from trivium import LLM, SamplingParams, StructuredOutputsParams
from trivium.types.errors import InvalidRequestError

MESSAGES = [{"role": "user", "content": "Answer with a short JSON value. Keep strings short."}]


@pytest.fixture(scope="module")
def smollm2() -> Iterator[LLM]:
    with LLM("smollm2", num_threads=1) as llm:
        yield llm


def accepted(llm: LLM, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the engine takes."""
    taken = {}
    for name, schema in schemas.items():
        form = StructuredOutputsParams(json=json.dumps(schema))
        try:
            llm.generate("x", SamplingParams(max_tokens=1, structured_outputs=form), use_tqdm=False)
        except InvalidRequestError:
            continue
        taken[name] = schema
    return taken


def check_answers(llm: LLM, schemas: Mapping[str, Any], max_tokens: int) -> int:
    """The number of answers that ended, each of which validates."""
    sampling = [
        SamplingParams(
            temperature=1.0, seed=seed, max_tokens=max_tokens, structured_outputs={"json": json.dumps(schema)}
        )
        for seed, schema in enumerate(schemas.values())
    ]
    num_ended = 0
    for schema, output in zip(
        schemas.values(), llm.chat([MESSAGES] * len(schemas), sampling, use_tqdm=False), strict=True
    ):
        (completion,) = output.outputs
        if completion.finish_reason == "stop":
            num_ended += 1
            kind = validator_for(schema, default=Draft202012Validator)
            kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(completion.text))
    return num_ended


def test_answers_of_the_default_model_validate(smollm2: LLM) -> None:
    schemas = accepted(smollm2, dict(list(PICKED.items())[::3]) | {str(seed): random_schema(seed) for seed in range(8)})
    assert check_answers(smollm2, schemas, max_tokens=96) > len(schemas) // 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_answers_of_the_default_model_validate_under_hundreds_of_schemas(smollm2: LLM) -> None:
    schemas = accepted(smollm2, PICKED | {str(seed): random_schema(seed) for seed in range(3000, 3500)})
    assert len(schemas) > 300
    assert check_answers(smollm2, schemas, max_tokens=256) > len(schemas) * 0.7
