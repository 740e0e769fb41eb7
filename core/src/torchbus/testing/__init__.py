"""For tests of loops, sessions and plugins: real scripts in real processes, and whether torch is as it was.

::

    def test_two_ranks():
        result = run_script('''
            from torchbus import session
            with session(strategy="ddp", devices=2) as s:
                s.print(s.world_size)
        ''')
        assert result.ok() and result.stdout == "2\\n"

``fork_script`` begins sooner, where Python itself need not be fresh. ``recording_server`` stands in for a service, ``small_disk`` is a disk
that can be full.
What looks at processes (``orphans``) needs Linux's /proc, and finds nothing elsewhere.
"""

from __future__ import annotations

from torchbus.testing.disks import SmallDisk, small_disk
from torchbus.testing.environments import empty_environment
from torchbus.testing.forking import ForkServer, fork_script
from torchbus.testing.processes import MARKER, listening_ports, orphans
from torchbus.testing.recorder import ALL_EVENTS, Recorder, RecordingLogger
from torchbus.testing.recording import RecordingServer, recording_server
from torchbus.testing.scripts import Result, Script, run, run_script, start, write_script
from torchbus.testing.state import OWNERS, assert_torch_unchanged, torch_state

__all__ = [
    "ALL_EVENTS",
    "MARKER",
    "OWNERS",
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
]  # fmt: skip
