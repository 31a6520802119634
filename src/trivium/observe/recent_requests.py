"""The accounts of the last requests, for whoever asks why one was slow."""

from __future__ import annotations

from collections import OrderedDict

from trivium.faults import fault_point
from trivium.observe.events import Event, RequestEnded
from trivium.observe.request_account import RequestAccount

MAX_KEPT = 2048  # accounts of about 1 KiB


class RecentRequests:
    """A listener. A client's own id may come twice: the later request is then the one that is told of."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._accounts: OrderedDict[str, RequestAccount] = OrderedDict()

    def on_event(self, event: Event) -> None:
        fault_point("observe.recent")
        if not isinstance(event, RequestEnded):
            return
        self._accounts.pop(event.request_id, None)
        self._accounts[event.request_id] = event.account
        if len(self._accounts) > self._max_kept:
            self._accounts.popitem(last=False)

    def find(self, request_id: str) -> RequestAccount | None:
        return self._accounts.get(request_id)

    def newest(self) -> list[RequestAccount]:
        """The newest first."""
        return list(reversed(self._accounts.values()))

    def slowest(self) -> list[RequestAccount]:
        """The slowest first."""
        return sorted(self._accounts.values(), key=lambda account: -account.seconds)
