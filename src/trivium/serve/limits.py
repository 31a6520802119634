"""Every limit that guards the server against its clients, in one table. Requests beyond one are refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from trivium.types.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Limits(Struct, frozen=True, kw_only=True):
    # The socket.
    header_bytes: int = 64 * KIB  # request line and headers together -> 431
    header_count: int = 256  # -> 431
    header_seconds: float = 30.0  # from the first byte of a request to the end of its headers; then the line is cut
    idle_connection_seconds: int = 75  # a kept-alive connection without a request; longer than clients' own 5 s
    body_bytes: int = 32 * MIB  # -> 413
    discard_seconds: float = 3.0  # for which the rest of a body that is too large is read and dropped
    body_seconds: float = 60.0  # from the headers to the end of the body -> 408
    request_id_chars: int = 128  # a longer X-Request-Id is replaced

    # One request. Nesting of JSON is bounded by its parser, to Python's recursion limit -> 400
    prompts: int = 1024  # of one completions request
    choices: int = 1024  # prompts x n
    messages: int = 16_384
    tools: int = 1024
    stop_strings: int = 64
    stop_string_chars: int = 1024
    stop_token_ids: int = 1024
    bad_words: int = 1024
    bad_word_chars: int = 1024
    logit_bias: int = 4096
    # No token of the vocabularies we know is longer, so a text of more than this many characters for each token of the
    # context cannot fit: it is refused before any time goes into its tokens.
    chars_per_token: int = 256

    # Files and batches. The first and the third are OpenAI's own.
    file_bytes: int = 512 * MIB  # -> 413
    blob_bytes: int = 64 * GIB  # of a model's file, sent to /api/blobs -> 413
    file_seconds: float = 3600.0  # for an upload -> 408
    batch_requests: int = 50_000
    all_files_bytes: int = 64 * GIB  # of all files together -> 400
    form_field_bytes: int = 64 * KIB  # of a field in a form that is not the file
    form_fields: int = 64
    file_name_chars: int = 512
    custom_id_chars: int = 512
    batch_errors: int = 100  # told of a batch that has no valid line
    metadata_entries: int = 16
    metadata_key_chars: int = 64
    metadata_value_chars: int = 512

    # The event loop. What is larger is done in a thread: about 1 ms of JSON, about 1 ms of tokenizing.
    inline_body_bytes: int = 256 * KIB
    inline_text_chars: int = 4 * KIB

    # Streams.
    keep_alive_seconds: float = 15.0  # between SSE comments on a silent stream
    # A prompt that takes longer to its first token gets its headers and keep-alive comments, so that no proxy cuts it;
    # until then every failure is an HTTP status.
    first_event_seconds: float = 30.0
    # For which a model that does not fit waits for others to become idle -> 503, with the numbers.
    model_wait_seconds: float = 30.0
    stats_seconds: float = 5.0  # for which /metrics waits for the engine's numbers, which come between two steps


def changed(limits: Limits, changes: Iterable[str]) -> Limits:
    """With each `name=value` in place of what was there."""
    values = msgspec.structs.asdict(limits)
    for change in changes:
        name, _, value = change.partition("=")
        if name not in values:
            raise ConfigError(f"there is no limit {name!r}; the limits are {', '.join(values)}")
        try:
            values[name] = type(values[name])(value)
        except ValueError:
            raise ConfigError(f"the limit {name} must be a number, not {value!r}") from None
        if not 0 < values[name] < math.inf:
            raise ConfigError(f"the limit {name} must be above 0, but is {value}")
    return Limits(**values)
