"""Several models in one server: each in an engine process of its own, loaded when it is asked for, let go when it is not.

The memory of all is bounded. A model that is in use never goes; of the others, the one that was used longest ago goes
first. All of it happens in one event loop, so that what is looked at and what is done about it cannot come apart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import msgspec

from trivium.engine.client import EngineState, Supervision
from trivium.faults import fault_point
from trivium.llm.async_llm import AsyncLLM
from trivium.serve.models.berth import Berth
from trivium.serve.models.offers import Offer, Offers
from trivium.serve.models.served import ServedModel
from trivium.serve.models.sizes import in_mib
from trivium.types.errors import ConfigError, EngineDeadError, ModelLoadError, NoRoomError, NotReadyError, TriviumError
from trivium.types.start_progress import StartProgress

log = logging.getLogger("trivium.serve")

# A model that comes and goes is started again when it is asked for again.
ONE_LIFE = Supervision(max_restarts=0)
LOOK_AGAIN_SECONDS = 1.0  # for models that can go, after a look that failed


class Fleet:
    def __init__(
        self,
        offers: Offers,
        dress: Callable[[AsyncLLM, Offer], ServedModel],
        *,
        budget: int,
        keep_alive: float | None,
        wait_seconds: float,
    ) -> None:
        """`budget`: bytes for all models together; `wait_seconds`: for others to become idle, where one does not fit."""
        self.offers = offers
        self.budget = budget
        self._dress = dress
        self._keep_alive = keep_alive
        self._wait_seconds = wait_seconds
        self._berths: dict[str, Berth] = {}
        self._leaving: dict[Berth, asyncio.Task[None]] = {}
        self._news = asyncio.Event()  # replaced by a new one whenever it is set
        self._watching: asyncio.Task[None] | None = None
        self._has_started = False
        for offer in offers.staying:
            self._berths[offer.name] = self._berth(offer)

    # Life

    async def start(self) -> None:
        """Until the models that stay are loaded. Raises what kept one from it."""
        staying = self._staying()
        need = sum(berth.offer.need for berth in staying)
        if len(staying) > 1 and need > self.budget:
            parts = ", ".join(f"{berth.offer.name} {in_mib(berth.offer.need)}" for berth in staying)
            raise ConfigError(
                f"{len(staying)} models need {in_mib(need)} together ({parts}), and the memory budget is "
                f"{in_mib(self.budget)}: name fewer, or raise --memory-budget; models in the store can be loaded when "
                "they are asked for"
            )
        self._watching = asyncio.create_task(self._let_go_in_time(), name="model-keep-alive")
        await asyncio.gather(*(self._begin(berth) for berth in staying))
        for berth in staying:
            if berth.failure is not None:
                raise berth.failure
        self._has_started = True

    async def close(self) -> None:
        """Requests under way end with EngineDeadError; no process is left."""
        tasks = [berth.loading for berth in self._berths.values() if berth.loading is not None]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ends = (berth.model.llm.close() for berth in self._berths.values())
        await asyncio.gather(*ends, *self._leaving.values())

    # Use

    @asynccontextmanager
    async def lease(self, offer: Offer, keep_alive: float | None) -> AsyncIterator[ServedModel]:
        """The model, loaded, and kept so. `keep_alive`: seconds for which it stays after that; None: for ever."""
        berth = self._living(offer)
        berth.is_unwanted = False
        berth.users += 1
        try:
            await self._until_loaded(berth)
            yield berth.model
        finally:
            berth.users -= 1
            berth.touch(keep_alive)
            self._tell()

    async def unload(self, name: str) -> bool:
        """Let a model go as soon as nobody uses it, and wait for that if nobody does; False: it stays."""
        berth = self._berths.get(name)
        if berth is None:
            return True
        if berth.offer.stays:
            return False
        if berth.is_idle:
            await asyncio.shield(self._let_go(berth))
            return True
        berth.is_unwanted = True
        return False

    @property
    def keep_alive(self) -> float | None:
        """Seconds, for requests that do not say it; None: for ever."""
        return self._keep_alive

    # What can be seen

    @property
    def default(self) -> ServedModel:
        return self._berths[self.offers.default.name].model

    def loaded(self) -> list[Berth]:
        """Those that stay first."""
        return [berth for berth in self._berths.values() if not berth.is_loading and not berth.is_dead]

    def loaded_model(self, name: str) -> ServedModel | None:
        return next((berth.model for berth in self.loaded() if berth.offer.name == name), None)

    def berth_of(self, name: str) -> Berth | None:
        """Loaded or being loaded."""
        return self._berths.get(name)

    def check_started(self) -> None:
        """Raise while a model that stays is being loaded for the first time."""
        if not self._has_started:
            raise self._not_ready()

    def start_progress(self) -> dict[str, StartProgress]:
        """Of the engines that are starting, by the model's name."""
        found = {name: berth.model.llm.start_progress for name, berth in self._berths.items()}
        return {name: progress for name, progress in found.items() if progress is not None}

    def _not_ready(self) -> NotReadyError:
        stages = "; ".join(f"{name}, {progress}" for name, progress in self.start_progress().items())
        return NotReadyError(f"the model is being loaded ({stages})" if stages else "the model is being loaded")

    async def check_health(self) -> None:
        """Raise where a model that stays does not answer; those that come and go are started when they are needed."""
        self.check_started()
        for berth in self._staying():
            await berth.model.llm.check_health()

    @property
    def is_given_up(self) -> bool:
        """No model that stays could be kept alive."""
        return all(berth.is_dead for berth in self._staying())

    # How models come

    def _staying(self) -> list[Berth]:
        return [self._berths[offer.name] for offer in self.offers.staying]

    def _berth(self, offer: Offer) -> Berth:
        supervision = None if offer.stays else ONE_LIFE
        llm = AsyncLLM(supervision=supervision, **msgspec.structs.asdict(offer.options))
        berth = Berth(offer, self._dress(llm, offer), self._keep_alive)
        berth.has_memory = offer.stays
        return berth

    def _living(self, offer: Offer) -> Berth:
        """The model's berth, a new one where there is none or its engine died."""
        berth = self._berths.get(offer.name)
        if berth is not None and berth.is_dead:
            self._let_go(berth)
            berth = None
        if berth is None:
            berth = self._berths[offer.name] = self._berth(offer)
            self._begin(berth)
        return berth

    def _begin(self, berth: Berth) -> asyncio.Task[None]:
        berth.loading = asyncio.create_task(self._load(berth), name=f"load-{berth.offer.name}")
        return berth.loading

    async def _load(self, berth: Berth) -> None:
        """All who wait for it learn of its failure; nothing is left of it then but its name, where it stays."""
        try:
            fault_point("fleet.load")
            if not berth.has_memory:
                await self._make_room(berth)
            await berth.model.llm.start()
            berth.touch(berth.keep_alive)
        except TriviumError as error:
            berth.failure = error
        except asyncio.CancelledError:
            berth.failure = EngineDeadError("the server is shutting down")  # and nothing else cancels a load
        except Exception as error:
            log.exception("the model %s could not be loaded, for a reason that nobody foresaw", berth.offer.name)
            berth.failure = ModelLoadError(f"{type(error).__name__}: {error}")
        finally:
            if berth.failure is not None:
                await berth.model.llm.close()
                if not berth.offer.stays:
                    berth.has_memory = False
                    self._berths.pop(berth.offer.name, None)
            self._tell()

    async def _until_loaded(self, berth: Berth) -> None:
        if berth.offer.stays and (berth.is_loading or berth.loading is None):
            raise self._not_ready()
        assert berth.loading is not None
        await asyncio.shield(berth.loading)  # the load is everybody's: who leaves does not end it
        match berth.failure:
            case None:
                pass
            case NoRoomError() | EngineDeadError():
                raise berth.failure.with_traceback(None)
            case failure:
                raise ModelLoadError(f"the model {berth.offer.name!r} could not be loaded: {failure}")
        if (state := berth.model.llm.state) is not EngineState.READY:
            raise NotReadyError(f"the engine is {state}")

    async def _make_room(self, berth: Berth) -> None:
        need = berth.offer.need
        staying = sum(other.offer.need for other in self._staying())
        if need > self.budget - staying:
            raise NoRoomError(
                f"the model {berth.offer.name!r} needs {_parts(berth.offer)}, and of the memory budget of "
                f"{in_mib(self.budget)} the models that stay take {in_mib(staying)}"
            )
        deadline = time.monotonic() + self._wait_seconds
        while (lacking := need - self._free_bytes()) > 0:
            self._evict(lacking)
            if not await self._news_before(deadline):
                in_use = [other for other in self._berths.values() if other.has_memory and not other.is_idle]
                names = ", ".join(f"{other.offer.name} {in_mib(other.offer.need)}" for other in in_use)
                raise NoRoomError(
                    f"the model {berth.offer.name!r} needs {_parts(berth.offer)}, and of the memory budget of "
                    f"{in_mib(self.budget)} models in use take too much: {names}",
                    retry_after=self._wait_seconds,
                )
        berth.has_memory = True

    def _free_bytes(self) -> int:
        held = (*self._berths.values(), *self._leaving)
        return self.budget - sum(berth.offer.need for berth in held if berth.has_memory)

    # How models go

    def _evict(self, lacking: int) -> None:
        """Let idle models go, the one used longest ago first, if that is enough with those that are about to go."""
        fault_point("fleet.evict")
        coming = sum(berth.offer.need for berth in self._leaving if berth.has_memory)
        idle = sorted(self._idle(), key=lambda berth: berth.last_used)
        if coming + sum(berth.offer.need for berth in idle) < lacking:
            return
        for berth in idle:
            if coming >= lacking:
                return
            coming += berth.offer.need
            self._let_go(berth)

    def _let_go(self, berth: Berth) -> asyncio.Task[None]:
        if self._berths.get(berth.offer.name) is berth:
            del self._berths[berth.offer.name]
        going = self._leaving[berth] = asyncio.create_task(self._end(berth), name=f"unload-{berth.offer.name}")
        return going

    async def _end(self, berth: Berth) -> None:
        try:
            try:
                fault_point("fleet.let_go")
                await berth.model.llm.close()
            except Exception:  # a process that was left would hold its memory for ever
                log.exception("the model %s could not be ended, and is once more", berth.offer.name)
                await berth.model.llm.close()
        finally:
            berth.has_memory = False
            del self._leaving[berth]
            self._tell()

    async def _let_go_in_time(self) -> None:
        while True:
            try:
                next_end = self._let_go_those_due()
            except Exception:
                log.exception("models whose time is over could not be looked for")
                next_end = time.monotonic() + LOOK_AGAIN_SECONDS
            await self._news_before(next_end)

    def _let_go_those_due(self) -> float:
        """When the next one is due."""
        fault_point("fleet.watch")
        next_end = time.monotonic() + 3600.0
        for berth in [*self._idle()]:
            left = berth.seconds_left
            if berth.is_dead or left == 0.0:
                self._let_go(berth)
            elif left is not None:
                next_end = min(next_end, time.monotonic() + left)
        return next_end

    def _idle(self) -> Iterator[Berth]:
        return (berth for berth in self._berths.values() if berth.is_idle)

    # Telling each other

    def _tell(self) -> None:
        """Something came, went, or is used no more."""
        self._news.set()
        self._news = asyncio.Event()

    async def _news_before(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


def _parts(offer: Offer) -> str:
    return (
        f"{in_mib(offer.need)} ({in_mib(offer.weight_bytes)} of weights, {in_mib(offer.kv_bytes)} of KV cache, and the "
        "engine itself)"
    )
