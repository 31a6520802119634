"""What is kept of each request: when it was meant to go, when it went, when each piece of its answer came, how it ended."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Outcome(StrEnum):
    """The only ways in which a request can end. Everything but COMPLETE is a failure, and none is left out."""

    COMPLETE = "complete"  # the whole answer came
    HTTP_ERROR = "http"  # a status other than 200
    STREAM_ERROR = "stream error"  # the stream began, and told an error
    CUT = "cut"  # the stream ended before its end
    RESET = "reset"  # the connection was closed before an answer began
    REFUSED = "refused"  # no connection was made
    TIMEOUT = "timeout"
    MALFORMED = "malformed"  # not HTTP, or not the events of a stream
    CLIENT_LIMIT = "client limit"  # this machine has no more sockets: the client's fault, not the server's


class RequestSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times are nanoseconds of the client's monotonic clock since the start of the run."""

    run: int  # which run of the experiment
    index: int
    scheduled_ns: int  # when it was meant to be sent; in a closed loop, when its turn came
    sent_ns: int  # before a connection is looked for or made
    ended_ns: int  # the end of the stream, or of the hope for it
    outcome: Outcome
    text_ns: list[int] = []  # arrivals of events that carried text; of the one that ended the answer if none did
    status: int | None = None
    detail: str | None = None  # of a failure
    planned_prompt_tokens: int
    planned_output_tokens: int
    prompt_tokens: int | None = None  # as the server counted them
    output_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def complete(self) -> bool:
        return self.outcome is Outcome.COMPLETE

    @property
    def failure(self) -> str:
        """The kind under which it is counted."""
        return f"http {self.status}" if self.outcome is Outcome.HTTP_ERROR else str(self.outcome)

    @property
    def num_output_tokens(self) -> int:
        """As the server counted; one for each event with text where it does not tell."""
        return len(self.text_ns) if self.output_tokens is None else self.output_tokens

    @property
    def num_prompt_tokens(self) -> int:
        return self.planned_prompt_tokens if self.prompt_tokens is None else self.prompt_tokens

    @property
    def ttft_ns(self) -> int:
        return self.text_ns[0] - self.sent_ns

    @property
    def e2e_ns(self) -> int:
        return self.ended_ns - self.sent_ns

    @property
    def tpot_ns(self) -> float | None:
        """None for an answer of one token, which has no time between tokens."""
        if self.num_output_tokens < 2:
            return None
        return (self.text_ns[-1] - self.text_ns[0]) / (self.num_output_tokens - 1)

    @property
    def lag_ns(self) -> int:
        return self.sent_ns - self.scheduled_ns
