"""Who asks. It goes with the task that answers, and with the tasks that this one starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from msgspec import Struct

from trivium.records.viewer import Viewer
from trivium.serve.access.allowance import Allowance, BatchTurn


class Caller(Struct, frozen=True, kw_only=True):
    """The holder of a key, and what it allows. Without arguments: anybody, where no key is needed."""

    name: str = ""  # of the key
    priority: int | None = None  # None: requests say it themselves
    models: frozenset[str] | None = None  # None: all
    is_admin: bool = True
    has_own_prefixes: bool = False
    allowance: Allowance | None = None
    is_let_in: bool = False  # its request was counted before it came to a route

    def may_use(self, model: str) -> bool:
        return self.models is None or bool(self.models & {model, model.removesuffix(":latest")})

    @property
    def viewer(self) -> Viewer:
        return Viewer(self.name, self.is_admin)

    def may_see(self, owner: str) -> bool:
        return self.is_admin or owner == self.name

    def priority_of(self, asked: int | None) -> int:
        """A request may be made to wait longer than the key demands, but not less (lower runs first)."""
        if self.priority is None:
            return asked or 0
        return self.priority if asked is None else max(self.priority, asked)

    def salt_of(self, asked: str) -> str:
        """Prefixes are reused among requests with one salt. No name has a zero in it: none can be made to look like another."""
        return f"{self.name}\0{asked}" if self.has_own_prefixes else asked

    def request(self) -> AbstractContextManager[None]:
        """From its arrival to its end; raises RateLimitedError where it has to wait."""
        return nullcontext() if self.allowance is None or self.is_let_in else self.allowance.request()

    async def batch_turn(self) -> BatchTurn:
        """For a request of a batch, when the caller's allowance has room for it."""
        return BatchTurn() if self.allowance is None else await self.allowance.batch_turn()

    def place(self) -> AbstractContextManager[None]:
        """For what goes on after the request that began it has been answered."""
        return nullcontext() if self.allowance is None else self.allowance.place()

    def charge(self, num_tokens: int) -> None:
        if self.allowance is not None:
            self.allowance.charge(num_tokens)


ANYBODY = Caller()

_caller: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def asking() -> Caller:
    return _caller.get()


@contextmanager
def acting_as(caller: Caller) -> Iterator[None]:
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)
