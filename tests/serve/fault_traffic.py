"""A little of everything that a server is asked, at once, and what came of each: an answer, or an error of a known kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from server_process import ServerProcess
from tiny_model import MODEL

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
PROMPTS = ("the quick brown fox", "Hello, world! How are you today?", "naïve café 你好")


class FailedError(Exception):
    """The request was answered with an error."""

    def __init__(self, status: int, code: str | None, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Outcome:
    kind: str
    answer: Any  # what must be the same in every run; None where it failed
    failure: FailedError | None


class Traffic:
    """Each kind of request is a method; `number` makes forms new to the server where they are to be."""

    def __init__(self, http: httpx.AsyncClient, number: int) -> None:
        self._http = http
        self._number = number

    async def stream(self, place: int = 0) -> Any:
        """Calls, stop strings and logprobs, as they come."""
        body = {
            "messages": [{"role": "user", "content": PROMPTS[place % len(PROMPTS)] + str(place)}],
            "max_tokens": 20,
            "temperature": 0,
            "ignore_eos": True,
            "stop": ["§§§"],
            "tools": TOOLS,
            "logprobs": True,
            "top_logprobs": 2,
        }
        chunks = [chunk async for chunk in self._events("/v1/chat/completions", body)]
        deltas = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in deltas)
        scores = [
            (entry["token"], entry["logprob"])
            for choice in deltas
            for entry in (choice.get("logprobs") or {}).get("content") or ()
        ]
        return text, scores, deltas[-1]["finish_reason"]

    async def chat(self) -> Any:
        body = {
            "messages": [{"role": "user", "content": "Say it."}],
            "max_tokens": 12,
            "temperature": 0,
            "tools": TOOLS,
        }
        (choice,) = (await self._post("/v1/chat/completions", {"model": MODEL, **body}))["choices"]
        return choice["message"]["content"], choice["finish_reason"]

    async def samples(self) -> Any:
        """Several answers to one prompt of more tokens than a step takes: the last begins with the first one's blocks."""
        body = {
            "prompt": list(range(3, 113)),
            "cache_salt": f"{self._number}",
            "n": 3,
            "seed": 7,
            "temperature": 1,
            "max_tokens": 12,
        }
        return [choice["text"] for choice in (await self._post("/v1/completions", body))["choices"]]

    async def prefill(self) -> Any:
        """A long prompt, new to the server."""
        body = {"prompt": [3 + place % 300 for place in range(500)], "cache_salt": f"{self._number}", "max_tokens": 1}
        return (await self._post("/v1/completions", {**body, "temperature": 0}))["choices"][0]["text"]

    async def scores(self) -> Any:
        body = {"prompt": PROMPTS[2], "echo": True, "logprobs": 1, "max_tokens": 3, "temperature": 0}
        (choice,) = (await self._post("/v1/completions", body))["choices"]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    async def form(self) -> Any:
        schema = {"title": f"form {self._number}", "enum": ["alpha", "beta"]}
        form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
        messages = [{"role": "user", "content": "Choose."}]
        body = {"messages": messages, "response_format": form, "max_tokens": 20, "temperature": 0}
        (choice,) = (await self._post("/v1/chat/completions", body))["choices"]
        return choice["message"]["content"]

    async def vector(self) -> Any:
        answer = await self._post("/v1/embeddings", {"input": PROMPTS[0]})
        return answer["data"][0]["embedding"]

    async def leaver(self) -> Any:
        body = {"messages": [{"role": "user", "content": "Go on and on."}], "max_tokens": 400, "ignore_eos": True}
        events = self._events("/v1/chat/completions", body)
        async for _ in events:
            break
        await events.aclose()  # type: ignore[attr-defined]
        return "left"

    async def file(self) -> Any:
        kept = await self._upload(b"some bytes\n" * 100, "user_data")
        try:
            content = await self._http.get(f"/v1/files/{kept}/content")
            check(content)
            return content.content
        finally:
            await self._http.delete(f"/v1/files/{kept}")

    async def response(self) -> Any:
        conversation = await self._post("/v1/conversations", {})
        body = {"input": "Hi", "conversation": conversation["id"], "max_output_tokens": 8, "temperature": 0}
        made = await self._post("/v1/responses", body)
        again = await self._http.get(f"/v1/responses/{made['id']}")
        check(again)
        return [part["text"] for item in again.json()["output"] for part in item["content"]]

    async def scrape(self) -> Any:
        page = await self._http.get("/metrics")
        check(page)
        return "trivium_requests_in_flight" in page.text

    async def batch(self) -> Any:
        bodies = [{"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0} for prompt in PROMPTS]
        lines = [
            {"custom_id": str(place), "method": "POST", "url": "/v1/completions", "body": body}
            for place, body in enumerate(bodies)
        ]
        kept = await self._upload("".join(json.dumps(line) + "\n" for line in lines).encode(), "batch")
        wish = {"input_file_id": kept, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = await self._post("/v1/batches", wish)
        async with asyncio.timeout(60):
            while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
                await asyncio.sleep(0.05)
                got = await self._http.get(f"/v1/batches/{batch['id']}")
                if got.status_code == 200:
                    batch = got.json()
        output = await self._http.get(f"/v1/files/{batch['output_file_id']}/content")
        check(output)
        answers = [json.loads(line) for line in output.text.splitlines()]
        return sorted((one["custom_id"], one["response"]["body"]["choices"][0]["text"]) for one in answers)

    async def _upload(self, data: bytes, purpose: str) -> str:
        answer = await self._http.post("/v1/files", files={"file": ("some.txt", data)}, data={"purpose": purpose})
        check(answer)
        return str(answer.json()["id"])

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self._http.post(path, json={"model": MODEL, **body} if path != "/v1/conversations" else body)
        check(answer)
        return answer.json()

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[Any]:
        body = {"model": MODEL, "stream": True, **body}
        async with self._http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                check(answer)
            ended = False
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    ended = True
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise FailedError(500, event["error"]["code"], event["error"]["message"])
                yield event
            if not ended:
                raise FailedError(0, None, "the stream was cut off")


def check(answer: httpx.Response) -> None:
    if answer.status_code != 200:
        error = answer.json()["error"]
        raise FailedError(answer.status_code, error["code"], error["message"])


NUM_STREAMS = 2  # that differ
MIXED = ("stream", "stream", "chat", "samples", "scores", "form", "vector", "leaver", "file", "response")


def send(server: ServerProcess, number: int, kinds: tuple[str, ...] = MIXED) -> list[Outcome]:
    """All at once; nothing is left when it returns."""

    async def one(traffic: Traffic, place: int, kind: str) -> Outcome:
        ask: Callable[..., Awaitable[Any]] = getattr(traffic, kind)
        try:
            async with asyncio.timeout(90):  # a request that is stuck is a failure of its own kind
                return Outcome(kind, await (ask(place % NUM_STREAMS) if kind == "stream" else ask()), None)
        except FailedError as failure:
            return Outcome(kind, None, failure)
        except (httpx.RemoteProtocolError, httpx.ReadError) as cut:
            return Outcome(kind, None, FailedError(0, None, f"cut off: {cut}"))

    async def all_of_them() -> list[Outcome]:
        async with httpx.AsyncClient(base_url=server.url, timeout=90) as http:
            traffic = Traffic(http, number)
            with contextlib.suppress(asyncio.CancelledError):
                return list(await asyncio.gather(*(one(traffic, place, kind) for place, kind in enumerate(kinds))))
            raise AssertionError("cancelled")

    return asyncio.run(all_of_them())
