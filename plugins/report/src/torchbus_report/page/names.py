"""The title of a metric on the page, its unit, and its place."""

from __future__ import annotations

import re

UNITS = {"pct": "%", "mib": "MiB", "s": "s", "c": "°C", "w": "W", "mhz": "MHz"}
TITLES = {
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "samples_per_s": "throughput",
    "step_time_s": "step time",
    "gpu_util_pct": "GPU utilisation",
    "gpu_memory_busy_pct": "GPU memory busy",
    "gpu_memory_used_mib": "GPU memory used",
    "gpu_memory_total_mib": "GPU memory total",
    "gpu_temperature_c": "GPU temperature",
    "gpu_power_w": "GPU power",
    "gpu_sm_clock_mhz": "GPU clock",
    "gpu_memory_clock_mhz": "GPU memory clock",
    "gpu_slowed_down": "GPU slowed down by heat or power",
    "torch_allocated_mib": "torch: memory allocated",
    "torch_allocated_peak_mib": "torch: memory allocated, peak",
    "torch_reserved_mib": "torch: memory reserved",
    "torch_alloc_retries": "torch: allocation retries",
    "loop_in_loader_pct": "time in the loader",
    "own_work_s": "own work per step",
    "step_s": "step time",
    "process_cpu_pct": "process CPU (100 % is one core)",
    "process_rss_mib": "process memory",
    "host_cpu_pct": "host CPU",
    "host_memory_pct": "host memory",
}
SPECIAL_UNITS = {"samples_per_s": "samples/s"}
LAST_OF_TRAINING = ("lr", "grad_norm", "samples_per_s", "step_time_s")


def title(name: str) -> str:
    """Return its title without the unit. The user's own names stay as they are."""
    base, number = _split(name)
    return f"{TITLES[base]} {number}".strip() if base in TITLES else name


def _split(name: str) -> tuple[str, str]:
    """Split "lr_2/group0", the second optimizer's "lr" of its first group, after "lr"."""
    match = re.fullmatch(r"(.+?)((?:_\d+)?(?:/(?:group)?\d+)?)", name)
    return (match[1], match[2].strip("_/")) if match else (name, "")


def unit(name: str) -> str:
    base, _ = _split(name)
    if base in SPECIAL_UNITS:
        return SPECIAL_UNITS[base]
    return UNITS.get(base.rsplit("_", 1)[-1], "") if base in TITLES else ""


def in_order(names: list[str], system: bool) -> list[str]:
    """Sort names: losses, the user's other metrics, and those that a session logs by itself.

    System metrics have the order of ``TITLES``.
    """
    if system:
        known = list(TITLES)
        return sorted(names, key=lambda name: known.index(name) if name in known else len(known))
    return sorted(names, key=_place)


def _place(name: str) -> tuple[int, int]:
    base, _ = _split(name)
    if base in LAST_OF_TRAINING:
        return 3, LAST_OF_TRAINING.index(base)
    return (0 if base == "loss" else 1 if "loss" in name else 2), 0
