"""What the watching threads read of the loop's thread, while the loop goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "frames_of_threads.py"


def test_frames_of_a_running_thread_are_read_whole() -> None:
    """Python 3.10 and 3.11 die, or hang, where a collection comes in between."""
    subprocess.run([sys.executable, str(SCRIPT)], check=True, timeout=60)
