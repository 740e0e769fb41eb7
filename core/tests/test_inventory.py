"""Which objects there are."""

import sys
import threading

from torch.nn import Linear, Module
from torch.optim import SGD, Optimizer
from torchbus import inventory


def test_objects_of_a_class_and_of_its_subclasses_are_found():
    model = Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    assert any(found is model for found in inventory.alive(Module))
    assert any(found is optimizer for found in inventory.alive(Optimizer))
    assert all(isinstance(found, Module) for found in inventory.alive(Module))


def test_proxies_are_not_asked_for_their_class():
    class Proxy:
        @property
        def __class__(self):
            raise AssertionError("asked")

    proxy = Proxy()
    assert all(found is not proxy for found in inventory.alive(Module))


def test_other_threads_never_see_objects_held_by_the_search():
    thing, counts, done = [], set(), threading.Event()

    def watch():
        while not done.is_set():
            counts.add(sys.getrefcount(thing))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(20):
        inventory.alive(Module)
    done.set()
    watcher.join()
    assert len(counts) == 1
