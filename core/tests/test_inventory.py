"""Which objects there are."""

import gc
import sys
import threading
import time

import pytest
from torch.nn import Linear, Module
from torch.optim import SGD, Optimizer
from torchbus import objects


def test_objects_of_a_class_and_of_its_subclasses_are_found():
    model = Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    assert any(found is model for found in objects.alive(Module))
    assert any(found is optimizer for found in objects.alive(Optimizer))
    assert all(isinstance(found, Module) for found in objects.alive(Module))


def test_proxies_are_not_asked_for_their_class():
    class Proxy:
        @property
        def __class__(self):
            raise AssertionError("asked")

    proxy = Proxy()
    assert all(found is not proxy for found in objects.alive(Module))


@pytest.fixture
def busy_collector():
    """Collections come at nearly every new object, and run Python code, in which threads take
    turns.
    """

    def work(phase, info):
        time.sleep(0)

    often, usual = (1, 1000, 1000), gc.get_threshold()
    gc.callbacks.append(work)
    gc.set_threshold(*often)
    yield
    gc.set_threshold(*usual)
    gc.callbacks.remove(work)


def test_other_threads_never_see_objects_held_by_the_search(busy_collector):
    thing, counts, done = [], set(), threading.Event()

    def watch():
        while not done.is_set():
            counts.add(sys.getrefcount(thing))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(5):
        objects.alive(Module)
    done.set()
    watcher.join()
    assert len(counts) == 1
