"""What the parrot is told to say."""

from __future__ import annotations

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
ADA = '{"name": "Ada", "age": 36}'


def say(answer: str) -> str:
    """A message to which the parrot answers so."""
    return f"<|say|>{answer}<|said|>"


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
