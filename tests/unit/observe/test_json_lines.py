from __future__ import annotations

import json
import logging

from trivium.observe.log_lines import JsonLines


def line(form: JsonLines, *, failed: bool = False) -> dict[str, object]:
    try:
        raise ValueError("why")
    except ValueError as error:
        info = (type(error), error, error.__traceback__) if failed else None
        record = logging.LogRecord("trivium.x", logging.ERROR, "f.py", 1, "%d things\nfailed", (3,), info)
    told = form.format(record)
    assert "\n" not in told
    return json.loads(told)


def test_a_line_says_when_where_and_for_which_request() -> None:
    told = line(JsonLines(lambda: "req_1"))
    assert (told["level"], told["logger"], told["message"]) == ("error", "trivium.x", "3 things\nfailed")
    assert told["request_id"] == "req_1" and str(told["time"]).endswith("+00:00")


def test_outside_of_requests_there_is_no_request_id() -> None:
    assert "request_id" not in line(JsonLines(lambda: None))


def test_an_exception_is_told_in_the_same_line() -> None:
    assert "ValueError: why" in str(line(JsonLines(lambda: None), failed=True)["exception"])
