"""The public API for plugins: marks, the context, event payloads, option helpers, and errors.

A plugin may also import ``torchbus.tree``, ``torchbus.objects``, ``torchbus.world``,
``torchbus.compat``, and the kits (strategies, launching, devices, commands, trackers) whose
packages it declares.
"""

from __future__ import annotations

from torchbus.bus.base import Plugin, hookimpl, hookspec
from torchbus.bus.options import expect, needs
from torchbus.errors import (
    LaunchError,
    PluginError,
    RankFailed,
    RanksDiverged,
    TorchbusError,
    Unsupported,
    UsageError,
    an,
)
from torchbus.objects import mark_internal
from torchbus.patches.backward import BackwardCall
from torchbus.patches.loaders import LoaderIterator, LoaderPass, Origin
from torchbus.patches.modules import Surround
from torchbus.patches.skipping import Answer
from torchbus.runtime.context import Context
from torchbus.runtime.user_code import users_frame, warn
from torchbus.world import DataPlace, Share, SharedStore, World

__all__ = [
    "Answer",
    "BackwardCall",
    "Context",
    "DataPlace",
    "LaunchError",
    "LoaderIterator",
    "LoaderPass",
    "Origin",
    "Plugin",
    "PluginError",
    "RankFailed",
    "RanksDiverged",
    "Share",
    "SharedStore",
    "Surround",
    "TorchbusError",
    "Unsupported",
    "UsageError",
    "World",
    "an",
    "expect",
    "hookimpl",
    "hookspec",
    "mark_internal",
    "needs",
    "users_frame",
    "warn",
]
