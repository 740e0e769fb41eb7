"""Reading and setting a function's variables leaves nothing in its frame."""

from __future__ import annotations

import gc
import sys
import weakref

import torch
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.compat import python


class Thing:
    pass


def test_what_was_read_is_freed_when_the_function_deletes_it():
    thing, cell = Thing(), 5
    alive = weakref.ref(thing)
    assert (lambda: cell)() == 5
    found = python.read(sys._getframe())
    assert found["thing"] is thing and found["cell"] == 5
    del found, thing
    assert alive() is None


def test_what_the_function_has_from_locals_stays_as_it_was():
    def function(lr: float, hidden: int = 8) -> None:
        given = locals()
        given["more"] = 1
        other = [lr]
        assert python.read(sys._getframe())["other"] is other
        python.assign(sys._getframe(), {"hidden": 16})
        assert hidden == 16 and given == {"lr": 0.1, "hidden": 8, "more": 1}

    function(0.1)


def test_names_of_a_module_and_of_a_class_are_set_for_good():
    class Scope:
        number = 1
        python.assign(sys._getframe(), {"number": python.read(sys._getframe())["number"] + 1})

    names = {"number": 1, "sys": sys, "python": python}
    exec("python.assign(sys._getframe(), {'number': 2, 'new': 3})", names)
    assert Scope.number == 2 and (names["number"], names["new"]) == (2, 3)


def test_a_session_keeps_nothing_of_the_loops_alive():
    class Listener:
        @hookimpl
        def after_backward(self):
            pass

    data, old = torch.zeros(10), torch.nn.Linear(2, 2)
    references = {"data": weakref.ref(data), "old": weakref.ref(old)}
    with session(Listener(), strategy=None) as s:
        del data
        old = None
        activation = torch.nn.Linear(2, 1)(torch.ones(1, 2))
        references["activation"] = weakref.ref(activation)
        assert old is None and "models" in s.explain()
        activation.sum().backward()
        del activation
        gc.collect()
        assert [name for name, reference in references.items() if reference() is not None] == []


def test_a_function_that_only_starts_a_session_is_freed():
    references = []

    def begin():
        data = Thing()
        references.append(weakref.ref(data))
        return session(strategy=None).start()

    s = begin()
    gc.collect()
    assert references[0]() is None and s._context.frame is None
    s.close()
    with session(strategy=None) as s:
        assert s._context.frame is sys._getframe()
