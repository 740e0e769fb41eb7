"""This process and its machine, through psutil."""

from __future__ import annotations

import psutil

MIB = 2**20


class Host:
    """CPU in percent: of one core for the process (300 is three cores), of the whole machine for the host. Memory in MiB and percent."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._read_before = False

    def read(self) -> dict[str, float]:
        memory = {"process_rss_mib": self._process.memory_info().rss / MIB, "host_memory_pct": psutil.virtual_memory().percent}
        processor = {"process_cpu_pct": self._process.cpu_percent(None), "host_cpu_pct": psutil.cpu_percent(None)}
        if not self._read_before:  # they are percentages of the time since the thread's call before
            self._read_before = True
            return memory
        return processor | memory
