"""/v1/batches: from the input file to the output file, beside online traffic, and through the death of the server."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest
from fault_plan import FaultPlan
from openai.types import Batch
from openapi_schemas import assert_conforms, without_nulls
from server_process import ServerProcess, wait_for
from tiny_model import MODEL

from trivium.records.records import Records

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def chat_line(number: int, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Question {number}"}],
        "max_tokens": 8,
        "temperature": 0,
        **fields,
    }
    return {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": body}


def jsonl(lines: list[Any]) -> bytes:
    return "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()


def start(client: openai.OpenAI, lines: list[Any], endpoint: str = CHAT, **options: Any) -> Batch:
    file = client.files.create(file=("input.jsonl", jsonl(lines)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
        **options,
    )


def ended(client: openai.OpenAI, batch_id: str) -> Batch:
    def poll() -> Batch | None:
        batch = client.batches.retrieve(batch_id)
        return batch if batch.status in ENDED else None

    return wait_for(poll)


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_m6_a_batch_answers_every_request_as_the_route_would(client: openai.OpenAI) -> None:
    created = start(client, [chat_line(number) for number in range(12)], metadata={"night": "1"})
    assert (created.status, created.object, created.metadata) == ("validating", "batch", {"night": "1"})
    batch = ended(client, created.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 12, "completed": 12, "failed": 0}
    assert batch.error_file_id is None
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert None not in times and times == sorted(times)  # type: ignore[type-var]
    output = lines_of(client, batch.output_file_id)
    assert [line["custom_id"] for line in output] == [f"request-{number}" for number in range(12)]
    assert len({line["id"] for line in output}) == 12
    for number, line in enumerate(output):
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["request_id"].startswith("req_")
        online = client.chat.completions.create(**chat_line(number)["body"])
        assert line["response"]["body"]["choices"][0]["message"]["content"] == online.choices[0].message.content
    usage = [line["response"]["body"]["usage"] for line in output]
    assert batch.usage is not None
    assert batch.usage.input_tokens == sum(item["prompt_tokens"] for item in usage)
    assert batch.usage.output_tokens == sum(item["completion_tokens"] for item in usage)


def test_m6_bad_lines_and_bad_requests_go_to_the_error_file(client: openai.OpenAI) -> None:
    lines = [
        chat_line(0),
        "this is not JSON",
        chat_line(0),
        chat_line(3, url="/v1/completions"),
        chat_line(4, temperature=17),
        chat_line(5, model="nobody"),
        chat_line(6),
    ]
    batch = ended(client, start(client, lines).id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 7, "completed": 2, "failed": 5}
    assert [line["custom_id"] for line in lines_of(client, batch.output_file_id)] == ["request-0", "request-6"]
    errors = lines_of(client, batch.error_file_id)
    assert [
        (line["custom_id"], (line["error"] or {}).get("code"), (line["response"] or {}).get("status_code"))
        for line in errors
    ] == [
        (None, "invalid_json_line", None),
        ("request-0", "duplicate_custom_id", None),
        ("request-3", "mismatched_url", None),
        ("request-4", None, 400),
        ("request-5", None, 404),
    ]
    assert errors[4]["response"]["body"]["error"]["code"] == "model_not_found"


def test_a_file_without_a_request_fails_the_batch_with_reasons(client: openai.OpenAI) -> None:
    batch = ended(client, start(client, ["nonsense", "{}"]).id)
    assert batch.status == "failed"
    assert batch.errors is not None and batch.errors.data is not None
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (1, "invalid_json_line"),
        (2, "invalid_json_line"),
    ]
    assert batch.failed_at is not None and batch.output_file_id is None


def test_completions_run_in_batches_too(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    batch = ended(client, start(client, [line], "/v1/completions").id)
    (answer,) = lines_of(client, batch.output_file_id)
    assert answer["response"]["body"]["object"] == "text_completion"


def test_the_input_may_be_deleted_while_its_batch_runs(client: openai.OpenAI) -> None:
    created = start(client, [chat_line(number, max_tokens=64) for number in range(40)])
    client.files.delete(created.input_file_id)
    batch = ended(client, created.id)
    assert batch.status == "completed" and batch.request_counts is not None
    assert batch.request_counts.completed == 40


def test_a_cancelled_batch_keeps_what_it_had(server: ServerProcess, client: openai.OpenAI) -> None:
    long = [chat_line(number, max_tokens=2000, ignore_eos=True) for number in range(2, 100)]
    created = start(client, [chat_line(0), chat_line(1), *long])

    def two_are_done() -> bool | None:
        counts = client.batches.retrieve(created.id).request_counts
        return True if counts is not None and counts.completed >= 2 else None

    wait_for(two_are_done)
    assert client.batches.cancel(created.id).status in ("cancelling", "cancelled")
    batch = ended(client, created.id)
    assert batch.status == "cancelled" and batch.cancelled_at is not None
    answered = [line["custom_id"] for line in lines_of(client, batch.output_file_id)]
    assert {"request-0", "request-1"} <= set(answered)
    errors = lines_of(client, batch.error_file_id)
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert len(answered) + len(errors) == 100
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(start_and_end(client))
    server.wait_until_idle()


def start_and_end(client: openai.OpenAI) -> str:
    return ended(client, start(client, [chat_line(0)]).id).id


def test_batches_conform_to_the_specification(server: ServerProcess, client: openai.OpenAI) -> None:
    batch_id = start_and_end(client)
    assert_conforms(without_nulls(server.get(f"/v1/batches/{batch_id}").json()), "Batch")
    listed = server.get("/v1/batches?limit=2").json()
    assert_conforms({**listed, "data": [without_nulls(batch) for batch in listed["data"]]}, "ListBatchesResponse")
    assert batch_id == listed["data"][0]["id"]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"endpoint": "/v1/files"}, 400, "endpoint"),
        ({"completion_window": "soon"}, 400, "completion_window"),
        ({"metadata": {"k": "x" * 513}}, 400, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, 400, "metadata"),
        ({"metadata": {str(number): "x" for number in range(17)}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after.seconds"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_by_field(
    server: ServerProcess, client: openai.OpenAI, change: dict, status: int, param: str
) -> None:
    file = client.files.create(file=b"{}", purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **change}
    answer = server.post("/v1/batches", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_file_for_something_else_is_no_input(server: ServerProcess, client: openai.OpenAI) -> None:
    file = client.files.create(file=b"{}", purpose="user_data")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    assert "purpose must be batch" in server.post("/v1/batches", body).json()["error"]["message"]


def test_an_unknown_batch_is_404(server: ServerProcess) -> None:
    assert server.get("/v1/batches/batch_none").json()["error"]["code"] == "batch_not_found"
    assert server.post("/v1/batches/batch_none/cancel").status_code == 404


def test_online_requests_make_a_batch_give_way(tiny_model: Path, tmp_path: Path) -> None:
    """Four rows, all taken by the batch: an online request gets one before they end, and the batch still ends."""
    slowed = FaultPlan(tmp_path)  # until the online request has come, so that the batch is far from its end
    slowed.arm({"point": "runner.forward", "action": "sleep", "sleep_seconds": 0.05, "times": 10**6})
    options = ("--served-model-name", MODEL, "--dtype", "float32", "--max-num-seqs", "4")
    server = ServerProcess(str(tiny_model), *options, environment=slowed.environment)
    try:
        client = server.openai()
        created = start(client, [chat_line(number, max_tokens=400, ignore_eos=True) for number in range(4)])
        wait_for(lambda: server.metrics()["trivium_running_sequences"] == 4 or None)
        client.chat.completions.create(**chat_line(0)["body"])
        assert server.metrics()["trivium_preemptions_total"] > 0
        assert client.batches.retrieve(created.id).status not in ENDED
        slowed.disarm()
        batch = ended(client, created.id)
        assert batch.request_counts is not None and batch.request_counts.completed == 4
        server.wait_until_idle()
    finally:
        assert server.stop() == 0


def test_a_stopped_server_leaves_its_batch_to_the_next(tiny_model: Path, tmp_path: Path) -> None:
    options = ("--served-model-name", MODEL, "--dtype", "float32", "--batch-concurrency", "4")
    first = ServerProcess(str(tiny_model), *options, state_dir=tmp_path)
    created = start(first.openai(), [chat_line(number, max_tokens=1500, ignore_eos=True) for number in range(40)])
    wait_for(lambda: first.openai().batches.retrieve(created.id).in_progress_at)
    assert first.stop() == 0  # without waiting for the batch
    second = ServerProcess(str(tiny_model), *options, state_dir=tmp_path)
    try:
        client = second.openai()
        assert client.batches.retrieve(created.id).status == "in_progress"
        client.batches.cancel(created.id)
        assert ended(client, created.id).status == "cancelled"
    finally:
        assert second.stop() == 0


def test_a_batch_of_a_thousand_survives_kill_9_with_each_request_answered_once(
    tiny_model: Path, tmp_path: Path
) -> None:
    count, state = 1000, tmp_path / "state"
    slowed = FaultPlan(tmp_path)  # so that the first server is far from the end when it is killed
    slowed.arm({"point": "runner.forward", "action": "sleep", "sleep_seconds": 0.025, "times": 10**6})
    options = ("--served-model-name", MODEL, "--dtype", "float32", "--batch-concurrency", "16")
    first = ServerProcess(str(tiny_model), *options, state_dir=state, environment=slowed.environment)
    created = start(first.openai(), [chat_line(number, ignore_eos=True) for number in range(count)])

    def some_are_done() -> bool | None:
        counts = first.openai().batches.retrieve(created.id).request_counts
        return True if counts is not None and counts.completed >= count // 4 else None

    wait_for(some_are_done)
    first.process.kill()
    first.process.wait()
    records = Records.open(state, 10**12)
    before = {line: result for line, _, _, result in records.batches.results(created.id) if result is not None}
    records.close()
    assert count // 4 <= len(before) < count

    second = ServerProcess(str(tiny_model), *options, state_dir=state)
    try:
        client = second.openai()
        batch = ended(client, created.id)
        assert batch.status == "completed" and batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": count, "completed": count, "failed": 0}
        output = client.files.content(batch.output_file_id or "").read().splitlines()
        ids = Counter(json.loads(line)["custom_id"] for line in output)
        assert ids == Counter(f"request-{number}" for number in range(count))
        assert all(output[line - 1] == result for line, result in before.items()), "an answer was replaced"
        second.wait_until_idle()
    finally:
        assert second.stop() == 0
    assert list((state / "incoming").iterdir()) == []
    assert list((state / "locks").iterdir()) == []
