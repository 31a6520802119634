"""The OpenAI Agents SDK: a tool is called, and what it gave goes back, by responses and by chats, whole and as a stream."""

from __future__ import annotations

import asyncio

import pytest
from agents import Agent, Model, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from agents.run import RunConfig
from openai import AsyncOpenAI
from server_process import ServerProcess
from told import CALL, say

UNTRACED = RunConfig(tracing_disabled=True)


@pytest.mark.parametrize("api", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_goes_back(
    parrot: ServerProcess, api: type[OpenAIResponsesModel | OpenAIChatCompletionsModel], stream: bool
) -> None:
    cities: list[str] = []

    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return say("It is sunny.")

    async def run(model: Model) -> str:
        agent = Agent(name="traveller", model=model, tools=[weather])
        if not stream:
            return (await Runner.run(agent, say(CALL), run_config=UNTRACED)).final_output
        result = Runner.run_streamed(agent, say(CALL), run_config=UNTRACED)
        async for _ in result.stream_events():
            pass
        return result.final_output

    async def story() -> str:
        async with AsyncOpenAI(base_url=f"{parrot.url}/v1", api_key="none") as client:
            return await run(api(model="parrot", openai_client=client))

    assert asyncio.run(story()) == "It is sunny."
    assert cities == ["Rome"]
