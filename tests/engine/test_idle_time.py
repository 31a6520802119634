"""While nobody asks for anything the engine prepares what later steps need; whoever then asks comes first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import zmq
from echo_core import EchoCore
from small_model import SmallModel

from trivium.config.options import EngineOptions
from trivium.engine.core import EngineCore
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Shutdown, encode
from trivium.kernels.large_pages import PAGE_BYTES

PATIENCE = 120  # seconds


class PreparingCore(EchoCore):
    """Has so many things to prepare; None: there is no end of them."""

    def __init__(self, num_things: int | None) -> None:
        super().__init__(EngineOptions(model="echo"), lambda progress: None)
        self.num_things = num_things
        self.num_prepared = 0
        self.has_begun, self.has_ended = Event(), Event()

    def prepare(self) -> bool:
        self.has_begun.set()
        if self.num_prepared == self.num_things:
            self.has_ended.set()
            return False
        self.num_prepared += 1
        return True


@contextmanager
def looping(core: PreparingCore) -> Iterator[None]:
    with zmq.Context() as context, context.socket(zmq.PAIR) as parent, context.socket(zmq.PAIR) as child:
        parent.bind("inproc://engine")
        child.connect("inproc://engine")
        thread = Thread(target=EngineLoop(core, child, os.getppid()).run)
        thread.start()
        try:
            yield
        finally:
            parent.send(encode(Shutdown()))
            thread.join(PATIENCE)
        assert not thread.is_alive()


def test_an_engine_with_nothing_to_do_prepares_all_there_is() -> None:
    core = PreparingCore(3)
    with looping(core):
        assert core.has_ended.wait(PATIENCE)
    assert core.num_prepared == 3


def test_a_message_does_not_wait_until_all_is_prepared() -> None:
    core = PreparingCore(None)
    with looping(core):
        assert core.has_begun.wait(PATIENCE)


def test_an_engine_prepares_its_caches_memory(small_model: SmallModel) -> None:
    cache_bytes = 8 << 20
    core = EngineCore(
        EngineOptions(model=str(small_model.directory), device="cpu", kv_cache_bytes=cache_bytes, num_threads=1)
    )
    pages = 0
    while core.prepare():
        pages += 1
    assert 1 <= pages <= cache_bytes // PAGE_BYTES
    assert not core.prepare()
