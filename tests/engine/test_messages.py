"""Promises of the wire between client and engine process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.engine.messages import (
    Deltas,
    ErrorReport,
    Refused,
    decode_from_engine,
    decode_to_engine,
    encode,
    report_error,
    restore_error,
)
from trivium.types.delta import Delta, FinishReason
from trivium.types.errors import (
    EngineDeadError,
    InvalidRequestError,
    ModelFileError,
    NeverFitsError,
    OverloadedError,
    TriviumError,
)
from trivium.types.request import Cancel, Request, Sampling, Stopping
from trivium.types.step import TokenLogprobs


@pytest.mark.parametrize(
    "error",
    [
        NeverFitsError(300, 20, 256),
        InvalidRequestError("temperature must be …", param="temperature", code="bad"),
        OverloadedError("the queue is full", retry_after=2.5),
        ModelFileError("no such file"),
        EngineDeadError("gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_out_of_the_wire_as_it_went_in(error: TriviumError) -> None:
    message = decode_from_engine(encode(Refused("r", report_error(error))))
    assert isinstance(message, Refused)
    restored = restore_error(message.error)
    assert type(restored) is type(error)
    assert str(restored) == str(error)
    assert vars(restored) == vars(error)


def test_an_error_of_an_unknown_kind_is_still_an_error_for_people() -> None:
    for kind in ("OSError", "annotations", ""):
        assert type(restore_error(ErrorReport(kind, "what happened"))) is TriviumError


def test_requests_and_deltas_come_out_as_they_went_in() -> None:
    request = Request(
        id="r",
        prompt=(1, 2, 3),
        sampling=Sampling(seed=2**64 - 1, logit_bias=((5, -1.5),), bad_words=((1, 2),), allowed_token_ids=(7,)),
        stopping=Stopping(max_tokens=4, stop_token_ids=(0,)),
        arrival=12.5,
        n=2,
        salt="tenant",
    )
    assert decode_to_engine(encode(request)) == request
    assert decode_to_engine(encode(Cancel("r", 1))) == Cancel("r", 1)
    logprobs = TokenLogprobs(5, -0.5, 1, (5, 6), (-0.5, -1.0))
    deltas = Deltas([Delta("r", 1, (5,), (logprobs,), finish_reason=FinishReason.STOP, stop_token=5)])
    assert decode_from_engine(encode(deltas)) == deltas


@given(st.binary(max_size=64))
def test_a_frame_that_is_no_message_is_none_and_never_raises(frame: bytes) -> None:
    decode_to_engine(frame)
    decode_from_engine(frame)


def test_frames_that_only_look_like_messages_are_none() -> None:
    whole = encode(Cancel("r", 1))
    for frame in (b"", whole[:-1], whole + b"\0", b"\xc1", encode(Deltas([])), b"\x81\xa4type\xa6cancel"):
        assert decode_to_engine(frame) is None
