"""The only module that a plugin imports.

Loggers also import ``torchbus.trackers``, and tests ``torchbus.testing``. Every other module of the
core is private.
"""

from __future__ import annotations

from torchbus import __version__ as VERSION
from torchbus._batches.anew import DividedAnew, Place
from torchbus._batches.feeding import Batches
from torchbus._batches.nested import collect, is_dataclass, leaves, map_leaves, map_tensors
from torchbus._batches.share import Share
from torchbus._batches.taken import Origin, Taken
from torchbus._bus.attributes import Plugin
from torchbus._bus.listeners import Listeners
from torchbus._bus.markers import hookimpl, hookspec
from torchbus._bus.needs import needs
from torchbus._bus.options import expect
from torchbus._bus.verbs import refuse_outside
from torchbus._checks import hyperparameters, rounding
from torchbus._checks.common_constants import MODULUS, Constants, told_alike
from torchbus._checks.digest import Digest, byte_sum
from torchbus._checks.hyperparameters import Settings
from torchbus._cli import html_page, program, session_options
from torchbus._cli.parser import Parser, complain
from torchbus._cli.program import Program
from torchbus._cli.session_options import program_and_session, session_parser
from torchbus._cli.table import table
from torchbus._compat import accelerators, local_variables
from torchbus._compat.required import absent, private, require
from torchbus._files.locks import OpenHere, try_lock
from torchbus._launch.environment import environment_variables
from torchbus._launch.start.relaunch import visible_device
from torchbus._launch.watch import thread_frames
from torchbus._launch.watch.place import END
from torchbus._loss import count as loss_count
from torchbus._loss.count import Count, Scales
from torchbus._loss.count import check_mode as check_loss_weight
from torchbus._loss.gradients import made_anew, scale_all
from torchbus._loss.graph.term import Number
from torchbus._loss.held import unscaled
from torchbus._loss.term_weights import NUMBERS as TERM_NUMBERS
from torchbus._loss.weights import LossWeights
from torchbus._ranks import random_streams
from torchbus._ranks.collectives import all_gather_object, broadcast_object
from torchbus._ranks.devices import threads_per_rank
from torchbus._ranks.random_streams import RandomStreams
from torchbus._ranks.world import DataPlace, SharedStore, World
from torchbus._redaction import Redactor, redacted
from torchbus._seams.backward import BackwardCall, as_list
from torchbus._seams.internal import making_internal, mark_internal
from torchbus._seams.loader import LoaderIterator
from torchbus._seams.modules.forward import Surround
from torchbus._seams.optimizers.skipping import Answer
from torchbus._seams.passes import Pass
from torchbus._session import inventory
from torchbus._session.context import Context
from torchbus._session.notices import deprecated, going, muted, users_frame, warn
from torchbus._session.services import BatchService, RandomService
from torchbus._session.steps import Steps
from torchbus._strategy import parts as strategies
from torchbus._strategy.group.guarded import guarded_groups
from torchbus._strategy.strategy import Strategy
from torchbus.errors import (
    LaunchError,
    PluginError,
    RankFailed,
    RanksDiverged,
    TorchbusError,
    Unsupported,
    UsageError,
)
from torchbus.session import Session

__all__ = [
    "END",
    "MODULUS",
    "TERM_NUMBERS",
    "VERSION",
    "Answer",
    "BackwardCall",
    "BatchService",
    "Batches",
    "Constants",
    "Context",
    "Count",
    "DataPlace",
    "Digest",
    "DividedAnew",
    "LaunchError",
    "Listeners",
    "LoaderIterator",
    "LossWeights",
    "Number",
    "OpenHere",
    "Origin",
    "Parser",
    "Pass",
    "Place",
    "Plugin",
    "PluginError",
    "Program",
    "RandomService",
    "RandomStreams",
    "RankFailed",
    "RanksDiverged",
    "Redactor",
    "Scales",
    "Session",
    "Settings",
    "Share",
    "SharedStore",
    "Steps",
    "Strategy",
    "Surround",
    "Taken",
    "TorchbusError",
    "Unsupported",
    "UsageError",
    "World",
    "absent",
    "accelerators",
    "all_gather_object",
    "as_list",
    "broadcast_object",
    "byte_sum",
    "check_loss_weight",
    "collect",
    "complain",
    "deprecated",
    "environment_variables",
    "expect",
    "going",
    "guarded_groups",
    "hookimpl",
    "hookspec",
    "html_page",
    "hyperparameters",
    "inventory",
    "is_dataclass",
    "leaves",
    "local_variables",
    "loss_count",
    "made_anew",
    "making_internal",
    "map_leaves",
    "map_tensors",
    "mark_internal",
    "muted",
    "needs",
    "private",
    "program",
    "program_and_session",
    "random_streams",
    "redacted",
    "refuse_outside",
    "require",
    "rounding",
    "scale_all",
    "session_options",
    "session_parser",
    "strategies",
    "table",
    "thread_frames",
    "threads_per_rank",
    "told_alike",
    "try_lock",
    "unscaled",
    "users_frame",
    "visible_device",
    "warn",
]
