"""Private names of torch and CPython that verify uses; nothing else in this package uses one.

All were seen in torch 2.13 and Python 3.11.
"""

from __future__ import annotations

import atexit
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _python_dispatch
from torch.utils.data import _utils, dataloader
from torchbus.compat.required import private

DATA_ITERATOR: Any = dataloader._BaseDataLoaderIter
"""Without it: AttributeError when a verification begins."""

NEXT_INDEX = "_next_index"
"""An iterator's method that draws the indices of a batch. Without it: AttributeError when a run
begins.
"""

RESET = "_reset"
"""An iterator's method that begins another pass. Without it: AttributeError when a run begins."""

MAP_FETCHER: Any = _utils.fetch._MapDatasetFetcher
"""Reads the samples of a batch. Without it: AttributeError when a verification begins."""

DispatchMode = _python_dispatch.TorchDispatchMode
"""Sees every operation of torch. Without it: AttributeError when a verification begins."""

LOCAL_SCALAR: object = torch.ops.aten._local_scalar_dense.default
"""The operation of ``item()``. Without it: AttributeError when a verification begins."""

current_graph_task_id: Callable[[], int] = private(
    torch._C, "_current_graph_task_id", "distinguishes a nested backward from the loop's"
)
"""Without it: UsageError at the first backward."""

OPEN_WRITER = "_open_zipfile_writer"
"""The function by which ``torch.save`` opens its file, without an audit event. Without it:
AttributeError when a run begins.
"""

clear_exit_functions: Callable[[], None] = atexit._clear
"""Forgets the parent's exit functions. Without it: AttributeError when a verification begins."""

run_exit_functions: Callable[[], None] = atexit._run_exitfuncs
"""Without it: AttributeError when a verification begins."""


COLLECTIVES = ("c10d", "_c10d_functional")
"""Namespaces of the operations that communicate. Without the second one: a forward that uses it and
that rank 0 repeats waits for the other ranks until the timeout.
"""


def import_dynamo() -> None:
    """Import torch's compiler once; otherwise the first optimizer step of every run would.

    Without ``torch._dynamo``: ModuleNotFoundError when the command begins.
    """
    importlib.import_module("torch._dynamo")


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether a module's calls are compiled. Without ``_compiled_call_impl``: rank 0 calls a module
    that compiles its own calls without compilation when it repeats a call.
    """
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
