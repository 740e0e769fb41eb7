"""For tests of loops, sessions and plugins: runs real scripts, and checks that torch is unchanged.

::

    def test_two_ranks():
        result = run_script('''
            from torchbus import session
            with session(strategy="ddp", devices=2) as s:
                s.print(s.world_size)
        ''')
        assert result.ok() and result.stdout == "2\\n"

``fork_script`` starts faster; use it if the script needs no fresh Python. ``recording_server``
stands in for a service, and ``small_disk`` is a disk that can be full. ``verify`` compares a script
with the same script in a session; torchbus-verify provides it. Functions that look at processes
(``orphans``) need Linux's /proc, and find nothing elsewhere.
"""

from __future__ import annotations

from typing import Any

from torchbus.bus import discovery

from torchbus_testing.environments import SmallDisk, empty_environment, small_disk
from torchbus_testing.forking import ForkServer, fork_script
from torchbus_testing.processes import MARKER, listening_ports, orphans
from torchbus_testing.recorder import ALL_EVENTS, CountedStore, Recorder, RecordingLogger
from torchbus_testing.recording import RecordingServer, recording_server
from torchbus_testing.scripts import Result, Script, run, run_script, start, write_script
from torchbus_testing.state import OWNERS, assert_torch_unchanged, torch_state

__all__ = [
    "ALL_EVENTS",
    "MARKER",
    "OWNERS",
    "CountedStore",
    "ForkServer",
    "Recorder",
    "RecordingLogger",
    "RecordingServer",
    "Result",
    "Script",
    "SmallDisk",
    "assert_torch_unchanged",
    "empty_environment",
    "fork_script",
    "listening_ports",
    "orphans",
    "recording_server",
    "run",
    "run_script",
    "small_disk",
    "start",
    "torch_state",
    "write_script",
]


def __getattr__(name: str) -> Any:
    """Return a name that a plugin offers for tests, found by its entry point.

    Raises PluginNotInstalled, with the pip command, if the package is missing.
    """
    if name in {*discovery.distributions("testing"), *discovery.installed("testing")}:
        return discovery.load(discovery.find("testing", name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
