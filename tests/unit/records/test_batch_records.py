from __future__ import annotations

import asyncio

from trivium.records.batches import BadLine, BatchRecord, BatchRequest, BatchStatus, LineError, TokenCounts
from trivium.records.records import Records

BATCH = BatchRecord(
    id="batch_1",
    created_at=1,
    endpoint="/v1/completions",
    model="tiny",
    input_file_id="file-1",
    completion_window="24h",
    expires_at=100,
    output_seconds=3600,
    metadata={"a": "b"},
)
REQUESTS = [BatchRequest(line, f"c{line}", 0, 10) for line in (3, 1, 2)]  # in the order in which they are to run


async def begun(records: Records) -> None:
    await records.batches.add(BATCH)
    await records.batches.begin(BATCH.id, REQUESTS, [BadLine(4, None, b"bad")])


def test_a_batch_is_read_as_it_was_added(records: Records) -> None:
    async def run() -> None:
        await records.batches.add(BATCH)
        assert await records.batches.get(BATCH.id) == BATCH
        assert [batch.id for batch in await records.batches.unfinished("tiny")] == [BATCH.id]
        assert await records.batches.unfinished("another") == []

    asyncio.run(run())


def test_unanswered_requests_come_in_their_order_page_by_page(records: Records) -> None:
    async def run() -> None:
        await begun(records)
        first = await records.batches.unanswered(BATCH.id, -1, 2)
        assert [request.line for _, request in first] == [3, 1]
        assert [request.line for _, request in await records.batches.unanswered(BATCH.id, first[-1][0], 2)] == [2]

    asyncio.run(run())


def test_a_second_answer_to_a_request_changes_nothing(records: Records) -> None:
    async def run() -> None:
        await begun(records)
        for answer in (b"first", b"second"):
            await records.batches.answer(BATCH.id, 1, True, answer, TokenCounts(input=5, output=7))
        batch = await records.batches.get(BATCH.id)
        assert batch is not None
        assert (batch.total, batch.completed, batch.failed) == (4, 1, 1)
        assert (batch.input_tokens, batch.output_tokens) == (5, 7)
        results = {line: result for line, _, _, result in records.batches.results(BATCH.id)}
        assert results == {1: b"first", 2: None, 3: None, 4: b"bad"}
        assert [request.line for _, request in await records.batches.unanswered(BATCH.id, -1, 9)] == [3, 2]

    asyncio.run(run())


def test_a_batch_cancelled_while_it_was_validated_does_not_begin(records: Records) -> None:
    async def run() -> None:
        await records.batches.add(BATCH)
        await records.batches.cancel(BATCH.id)
        await records.batches.begin(BATCH.id, REQUESTS, [])
        await records.batches.fail(BATCH.id, [LineError("x", "y")])
        batch = await records.batches.get(BATCH.id)
        assert batch is not None and batch.status is BatchStatus.CANCELLING
        assert await records.batches.unanswered(BATCH.id, -1, 9) == []

    asyncio.run(run())


def test_a_batch_that_is_being_finalized_cannot_be_cancelled(records: Records) -> None:
    async def run() -> None:
        await begun(records)
        await records.batches.finalize(BATCH.id)
        batch = await records.batches.cancel(BATCH.id)
        assert batch is not None and batch.status is BatchStatus.FINALIZING

    asyncio.run(run())


def test_a_claim_is_held_by_one_and_can_be_taken_again(records: Records) -> None:
    claim = records.claims.take("batch_1")
    assert claim is not None
    assert records.claims.take("batch_1") is None
    claim.give_back()
    again = records.claims.take("batch_1")
    assert again is not None
    again.give_back()
