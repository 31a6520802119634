"""/v1/models, /tokenize, /detokenize and /tokenizer_info."""

from __future__ import annotations

import openai
import pytest
from openapi_schemas import assert_conforms
from server_process import ServerProcess
from tiny_model import CONTEXT, MODEL, TEMPLATE


def test_m2_models_are_listed(server: ServerProcess, client: openai.OpenAI) -> None:
    answer = server.get("/v1/models").json()
    assert answer == server.get("/v1/models").json()
    assert_conforms(answer, "ListModelsResponse")
    (model,) = answer["data"]
    assert (model["id"], model["object"], model["max_model_len"], model["parent"]) == (MODEL, "model", CONTEXT, None)
    assert isinstance(model["created"], int) and model["owned_by"] and model["root"] == MODEL
    assert [model.id for model in client.models.list()] == [MODEL]


def test_m3_a_model_is_retrieved_by_an_id_with_a_slash(server: ServerProcess, client: openai.OpenAI) -> None:
    assert client.models.retrieve(MODEL).id == MODEL
    assert_conforms(server.get(f"/v1/models/{MODEL}").json(), "Model")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("some/other")
    assert caught.value.code == "model_not_found"


def test_m5_text_becomes_tokens_and_text_again(server: ServerProcess) -> None:
    text = "naïve 你好 🙂"
    answer = server.post("/tokenize", {"prompt": text}).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == CONTEXT
    assert server.post("/tokenize", {"content": text}).json() == answer
    back = server.post("/detokenize", {"tokens": answer["tokens"]}).json()
    assert back == {"prompt": text, "text": text, "content": text}


def test_m5_pieces_may_be_shown(server: ServerProcess) -> None:
    pieces = server.post("/tokenize", {"content": "Hello", "with_pieces": True}).json()["tokens"]
    assert "".join(piece["piece"] for piece in pieces) == "Hello"
    strings = server.post("/tokenize", {"prompt": "Hello", "return_token_strs": True}).json()["token_strs"]
    assert "".join(strings) == "Hello"


def test_m5_who_tokenizes_here_is_told_what_begins_and_ends_a_text(server: ServerProcess) -> None:
    told = {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "chat_template": TEMPLATE,
        "model_max_length": CONTEXT,
    }
    assert server.get("/tokenizer_info").json() == told
    assert server.get("/tokenizer_info", params={"model": MODEL}).json() == told
    assert server.get("/tokenizer_info", params={"model": "another"}).status_code == 404


def test_m5_what_is_no_text_or_token_is_refused(server: ServerProcess) -> None:
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 3}),
        ("/detokenize", {"tokens": [10**6]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {}),
    ):
        assert server.post(path, body).status_code == 400
