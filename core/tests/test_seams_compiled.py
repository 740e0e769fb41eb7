"""What torch.compile, warnings and other replacements meet of a seam."""

from __future__ import annotations

import inspect
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.patches.patching import replace

KINDS = ("model", "function", "loss")


@pytest.mark.parametrize("kind", KINDS)
def test_torch_compile_meets_no_hook(kind):
    graphs, called = [], []

    class Listener:
        @hookimpl
        def model_found(self):
            pass

        @hookimpl
        def module_called(self, module):
            called.append(module)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    net, other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.nn.Linear(2, 2)
    with warnings.catch_warnings(), session(Listener(), strategy=None) as s:
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")
        compiled = {"model": net, "function": lambda x: net(x), "loss": lambda x: net(x).sum()}[
            kind
        ]
        compiled = torch.compile(compiled, backend=backend)
        for _ in range(3):
            compiled(torch.ones(1, 2))
            other(torch.ones(1, 2))
        s._context.seams.retire("model_found")
        s._context.seams.retire("module_called")
        compiled(torch.ones(1, 2))
    assert len(graphs) == 1
    # where something else is compiled, models are known by their optimizers
    expected = {"model": [compiled, other] * 3}.get(kind, [])
    assert called == expected


def test_a_warning_points_at_the_users_line_and_not_into_a_library():
    from tqdm import tqdm

    names = {"__name__": "torchbus_demo"}
    exec("from torchbus.runtime.user_code import warn\ndef batch_ready(): warn('here')", names)
    plugin = SimpleNamespace(batch_ready=hookimpl(names["batch_ready"]))
    with session(plugin, strategy=None), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = inspect.currentframe().f_lineno + 1
        list(tqdm(DataLoader([1]), disable=True))
        list(map(str, tqdm(DataLoader([1]))))
    assert [(warning.filename, warning.lineno) for warning in caught] == [
        (__file__, line),
        (__file__, line + 1),
    ]


def test_replacements_of_ours_are_undone_in_any_order() -> None:
    original = torch.compile
    undo_first, undo_second = (
        replace(torch, "compile", lambda below: lambda *args, **kwargs: below(*args, **kwargs))
        for _ in range(2)
    )
    undo_first()
    assert torch.compile is not original
    undo_second()
    assert torch.compile is original
