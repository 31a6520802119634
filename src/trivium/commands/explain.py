"""`trivium explain`: where a request's time went, as the server that answered it tells."""

from __future__ import annotations

import argparse
import os
import urllib.error
import urllib.parse
import urllib.request

import msgspec

from trivium.observe.request_account import RequestAccount
from trivium.types.errors import TriviumError

TIMEOUT_SECONDS = 30
SLOWEST = 10


class _Explained(msgspec.Struct):
    sentences: list[str]


class _Listed(msgspec.Struct):
    data: list[RequestAccount]


def run(args: argparse.Namespace) -> int:
    key = args.api_key or os.environ.get("TRIVIUM_API_KEY")
    path = f"/v1/requests/{urllib.parse.quote(args.request, safe='')}" if args.request else _slowest_path()
    answer = _get(args.url.rstrip("/") + path, key)
    if args.json:
        print(answer.decode())
    elif args.request:
        print("\n".join(msgspec.json.decode(answer, type=_Explained).sentences))
    else:
        for account in msgspec.json.decode(answer, type=_Listed).data:
            print(_line(account))
    return 0


def _slowest_path() -> str:
    return f"/v1/requests?order=slowest&limit={SLOWEST}"


def _line(account: RequestAccount) -> str:
    cause, seconds = max(account.causes.items(), key=lambda item: item[1])
    return f"{account.seconds:9.3f} s  {account.request_id}  {account.end}; most of it: {cause} {seconds:.3f} s"


def _get(url: str, key: str | None) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        raise TriviumError(_message(error)) from None
    except (OSError, ValueError) as error:
        raise TriviumError(f"{url} does not answer: {error}") from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(msgspec.json.decode(error.read())["error"]["message"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return f"the server answered {error.code}"
