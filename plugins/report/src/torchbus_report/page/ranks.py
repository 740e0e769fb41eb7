"""The table of ranks: times of a step, which rank the others wait for, and their machines."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from torchbus_report.runs.summary import LoggedRun, RankFile

RECENT, MOST_RANKS = 10, 256
SLOWER, PART_OF_STEP = 1.25, 0.1
GIB = 1 / 1024
COLUMNS = {
    "step, ms": ("step_s", 1000.0),
    "own work, ms": ("own_work_s", 1000.0),
    "waits, ms": ("waits_s", 1000.0),
    "waits for data, %": ("loop_in_loader_pct", 1.0),
    "GPU, %": ("gpu_util_pct", 1.0),
    "GPU memory, GiB": ("gpu_memory_used_mib", GIB),
    "GPU, °C": ("gpu_temperature_c", 1.0),
    "process CPU, %": ("process_cpu_pct", 1.0),
    "process memory, GiB": ("process_rss_mib", GIB),
    "host CPU, %": ("host_cpu_pct", 1.0),
    "host memory, %": ("host_memory_pct", 1.0),
}
Heading = Callable[[int], str]
Measured = dict[int, dict[str, float]]


def section(runs: list[LoggedRun], heading: Heading) -> str:
    """Return the section, or "" if no run has measured its ranks."""
    tables = [heading(number) + _table(run) for number, run in enumerate(runs) if run.system]
    if not tables:
        return ""
    return (
        '<section id="ranks"><h2>Ranks <span class="quiet">medians of the last'
        f" {RECENT} measurements</span></h2>{''.join(tables)}</section>"
    )


def measured(run: LoggedRun) -> Measured:
    """Return the recent values of each rank, with ``waits_s``, its waiting time in a step.

    This is the difference to the longest ``own_work_s`` of all ranks.
    """
    found = {rank: _recent(lines) for rank, lines in run.system.items()}
    known = [one for one in found.values() if "own_work_s" in one]
    longest_s = max((one["own_work_s"] for one in known), default=0.0)
    for one in known:
        one["waits_s"] = longest_s - one["own_work_s"]
    return found


def slow_rank(ranks: Measured) -> int | None:
    """Return the rank that the others wait for, if its own work is clearly longer than theirs."""
    work = {rank: one["own_work_s"] for rank, one in ranks.items() if "own_work_s" in one}
    if len(work) < 2:
        return None
    slow = max(work, key=lambda rank: work[rank])
    others_s = median(seconds for rank, seconds in work.items() if rank != slow)
    least_s = PART_OF_STEP * ranks[slow].get("step_s", 0.0)
    return slow if work[slow] > max(SLOWER * others_s, others_s + least_s) else None


def _recent(lines: RankFile) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for point in lines.points[-RECENT:]:
        for name, value in point.values.items():
            values.setdefault(name, []).append(value)
    return {name: median(ones) for name, ones in values.items()}


def _table(run: LoggedRun) -> str:
    ranks = measured(run)
    slow = slow_rank(ranks)
    shown = {
        head: column
        for head, column in COLUMNS.items()
        if any(column[0] in one for one in ranks.values())
    }
    heads = "".join(f"<th scope=col>{head}</th>" for head in ("rank", *shown))
    rows = "".join(
        f"<tr{' class=differs' if rank == slow else ''}><th scope=row>{rank}</th>"
        f"{''.join(_cell(one, *column) for column in shown.values())}</tr>"
        for rank, one in list(ranks.items())[:MOST_RANKS]
    )
    word = "" if slow is None else f'<p class="bad">The other ranks wait for rank {slow}.</p>'
    return (
        f'{word}<div class="wide"><table class="sheet"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(values: dict[str, float], name: str, factor: float) -> str:
    return f"<td>{f'{factor * values[name]:,.3g}' if name in values else ''}</td>"
