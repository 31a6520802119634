from __future__ import annotations

import pytest
from msgspec.structs import replace

from trivium.observe.request_account import SequenceGroup, account_for, sentences
from trivium.observe.request_end import RequestEnd
from trivium.types.account import Account

FIRST = Account(10.0, 13.0, handover=0.5, queued=1.0, prompt=0.5, decode=1.0, num_steps=10, num_rows=25)
LAST = Account(10.0, 14.0, queued=3.0, decode=1.0, why_queued="a free row", num_ahead=7, num_steps=4, num_rows=4)


def test_of_several_sequences_the_last_to_end_tells_the_causes() -> None:
    group = SequenceGroup(10.0, 14.5, 6, 20, (FIRST, LAST))
    account = account_for("r", RequestEnd.COMPLETE, 1e9, 9.0, 16.0, [group], slow_client=1.0)
    assert account.causes == {"receiving": 1.0, "queued": 3.0, "decode": 1.0, "answering": 1.0, "client": 1.0}
    assert sum(account.causes.values()) == account.seconds == 7.0
    assert (account.num_sequences, account.mean_batch) == (2, 1.0)
    account = replace(account, time_to_first_token=0.25, inter_token_latency=0.0125)
    told = "\n".join(sentences(account))
    assert "0.250 s to the first token, then 12.5 ms from one to the next in the mean." in told
    assert "a free row was wanting, and 7 sequences were before it" in told
    assert told.index("waiting for room") < told.index("decoding"), "the largest cause comes first"


def test_what_the_engine_did_not_account_for_is_a_cause() -> None:
    account = account_for("r", RequestEnd.CANCELLED, 1e9, 9.0, 12.0, [SequenceGroup(10.0, 11.0)])
    assert account.causes == {"receiving": 1.0, "engine": 1.0, "answering": 1.0}


def test_a_request_that_never_came_to_the_engine_was_only_received() -> None:
    assert account_for("r", RequestEnd.INVALID, 1e9, 1.0, 1.5, []).causes == {"receiving": pytest.approx(0.5)}


def test_what_the_engine_did_after_nobody_wanted_it_is_no_part_of_the_time() -> None:
    """A stop string came at 13.5, or a client left then; the step under way ended at 14."""
    group = SequenceGroup(10.0, 13.5, accounts=(LAST,))
    account = account_for("r", RequestEnd.COMPLETE, 1e9, 9.0, 14.0, [group])
    assert account.causes == {"receiving": 1.0, "queued": 3.0, "decode": 0.5, "answering": 0.5}
    gone = account_for("r", RequestEnd.CANCELLED, 1e9, 9.0, 11.0, [SequenceGroup(10.0, 11.0, accounts=(LAST,))])
    assert gone.causes == {"receiving": 1.0, "queued": 1.0}


def test_later_texts_of_a_request_wait_for_its_earlier_ones() -> None:
    account = account_for("r", RequestEnd.COMPLETE, 1e9, 9.0, 14.0, [SequenceGroup(9.5, 14.0, accounts=(LAST,))])
    assert account.causes == {"receiving": 0.5, "own_texts": 0.5, "queued": 3.0, "decode": 1.0}


def test_while_a_sequence_is_silent_the_rest_is_the_engines() -> None:
    group = SequenceGroup(10.0, 14.5, accounts=(LAST,), num_silent=1)
    account = account_for("r", RequestEnd.COMPLETE, 1e9, 10.0, 14.5, [group])
    assert account.causes == {"queued": 3.0, "decode": 1.0, "engine": 0.5}
