"""This process and its machine, through psutil."""

from __future__ import annotations

import psutil

MIB = 2**20


class Host:
    """Reads CPU in percent, and memory in MiB and percent.

    The process's CPU is in percent of one core (300 is three cores), the host's of all cores.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._read_before = False

    def read(self) -> dict[str, float]:
        memory = {
            "process_rss_mib": self._process.memory_info().rss / MIB,
            "host_memory_pct": psutil.virtual_memory().percent,
        }
        processor = {
            "process_cpu_pct": self._process.cpu_percent(None),
            "host_cpu_pct": psutil.cpu_percent(None),
        }
        if not self._read_before:  # percentages refer to the time since the last call
            self._read_before = True
            return memory
        return processor | memory
