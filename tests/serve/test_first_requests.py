"""Nobody's first request waits for modules: the API process has imported all that it needs when it says that it is ready."""

from __future__ import annotations

from pathlib import Path

from server_process import ServerProcess
from tiny_model import MODEL

MESSAGES = [{"role": "user", "content": "a b"}]
CHAT = {"model": MODEL, "messages": MESSAGES, "max_tokens": 2}
FIRST_REQUESTS = {
    "/v1/chat/completions": (CHAT, {**CHAT, "stream": True, "logprobs": True}, {**CHAT, "n": 2, "typical_p": 0.5}),
    "/v1/completions": ({"model": MODEL, "prompt": "a", "max_tokens": 2},),
    "/v1/embeddings": ({"model": MODEL, "input": "a"},),
    "/v1/responses": (
        {"model": MODEL, "input": "a", "max_output_tokens": 2},
        {"model": MODEL, "input": "a", "max_output_tokens": 2, "stream": True},
    ),
    "/v1/messages": (CHAT, {**CHAT, "stream": True}),
    "/api/chat": ({"model": MODEL, "messages": MESSAGES, "options": {"num_predict": 2}},),
    "/api/generate": ({"model": MODEL, "prompt": "a", "options": {"num_predict": 2}},),
}


def test_no_module_is_imported_by_the_first_request_of_any_kind(tiny_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "imports"
    server = ServerProcess(
        str(tiny_model),
        "--served-model-name",
        MODEL,
        program=(str(Path(__file__).with_name("imports_server.py")),),
        environment={"IMPORTS_LOG": str(log)},
    )
    try:
        assert server.get("/health").status_code == 200
        at_start = log.read_text().splitlines()
        assert "starlette" in at_start  # the log is one of imports
        for path, bodies in FIRST_REQUESTS.items():
            for body in bodies:
                assert server.post(path, body).status_code == 200, path
                assert log.read_text().splitlines()[len(at_start) :] == [], path
    finally:
        server.stop()
