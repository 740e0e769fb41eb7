"""One chart: curves as SVG, which fits any width, texts as HTML, values for hovering as JSON."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchbus_report.page.series import AxisScale, Curve, fit, series, tick_text
from torchbus_report.runs.summary import LoggedRun, RankFile

SIZE = 1000
COLORS, DASHES = 8, 5
CLOCK_STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 14400, 28800, 43200, 86400),
)
FROM_ZERO = ("%", "MiB", "s", "samples/s")


@dataclass(frozen=True)
class Axis:
    """The x axis. With ``clock``, seconds are shown as minutes and hours."""

    word: str
    clock: bool = False

    def text(self, value: float) -> str:
        return _time(value) if self.clock else tick_text(value)


STEPS, TIME = Axis("step"), Axis("time", clock=True)


def chart(name: str, curves: list[Curve], axis: Axis, *, hover_names: bool) -> str:
    """Return a chart. With ``hover_names``, the values shown on hovering have the curves' names."""
    lost = sum(curve.lost for curve in curves)
    curves = [curve for curve in curves if curve.known]
    across, up = _across(curves), _up(name, [value for curve in curves for value in curve.known])
    title = f"<b>{html.escape(names_title(name))}</b>"
    lines = "".join(_curve(number, curve, across, up) for number, curve in enumerate(curves))
    return (
        f'<figure class="chart" data-name="{html.escape(name)}"'
        f' data-hover="{_hover(curves, across, up, axis, hover_names)}">'
        f"<figcaption>{title}{_unit(name, up)}{_lost(lost)}</figcaption>"
        f'<div class="plot"><svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(_spoken(name, curves))}">{grid(up)}{lines}</svg>'
        f"{y_labels(up)}{x_labels(across, axis)}</div></figure>"
    )


def _across(curves: list[Curve]) -> AxisScale:
    """Return a scale from the first point to the last, without a margin."""
    ends = [x for curve in curves for x in (curve.x[0], curve.x[-1])]
    return AxisScale(min(ends), max(ends)) if ends and max(ends) > min(ends) else fit(ends)


def _up(name: str, values: list[float]) -> AxisScale:
    unit = names_unit(name)
    if unit == "%" and max(values, default=0.0) <= 100:
        return AxisScale(0.0, 105.0)
    return fit(values, from_zero=unit in FROM_ZERO, log=not unit)


def _curve(number: int, curve: Curve, across: AxisScale, up: AxisScale) -> str:
    """Return a curve, and its mean if it is rough. ``number`` is its index in the hover's data."""
    style, raw, mean = color_class(curve.color), f'data-y="{number}"', f'data-m="{number}"'
    if len(curve.known) == 1:
        return path(f"{style} dot", raw, curve.points, across, up)
    if curve.smoothed:
        return path(f"{style} raw", raw, curve.points, across, up) + path(
            style, mean, curve.smoothed, across, up
        )
    return path(style + (" faint" if curve.faint else ""), raw, curve.points, across, up)


def color_class(number: int) -> str:
    """Return the classes of a colour and of a dash.

    Dashes help with overlapping curves and colour blindness.
    """
    return f"c{number % COLORS} d{number % DASHES}"


def path(
    style: str, mark: str, points: list[tuple[float, float]], across: AxisScale, up: AxisScale
) -> str:
    commands, pen_up = [], True
    for x, y in points:
        if math.isnan(y):
            pen_up = True
            continue
        commands.append(
            f"{'M' if pen_up else 'L'}{SIZE * across.place(x):.0f} {SIZE * (1 - up.place(y)):.0f}"
        )
        pen_up = False
    end = "h0" if len(commands) == 1 else ""
    return f'<path class="{style}" {mark} d="{"".join(commands)}{end}"/>'


def grid(up: AxisScale) -> str:
    lines = [
        f'<path class="grid" d="M0 {SIZE * (1 - up.place(tick)):.1f}H{SIZE}"/>'
        for tick in up.ticks()
    ]
    return "".join(lines)


def y_labels(up: AxisScale) -> str:
    return "".join(
        f'<span class="y" style="top:{100 * (1 - up.place(tick)):.2f}%">{tick_text(tick)}</span>'
        for tick in up.ticks()
    )


def x_labels(across: AxisScale, axis: Axis) -> str:
    ticks = _clock_ticks(across) if axis.clock else across.ticks()
    return "".join(
        f'<span class="x" style="left:{100 * across.place(tick):.2f}%">{axis.text(tick)}</span>'
        for tick in ticks
    )


def _clock_ticks(across: AxisScale) -> list[float]:
    length = across.high - across.low
    days = 86400 * math.ceil(length / 86400 / 5)
    size = next((size for size in CLOCK_STEPS_S if size * 5 >= length), days)
    return [
        float(size * number)
        for number in range(math.ceil(across.low / size), math.floor(across.high / size) + 1)
    ]


def _hover(curves: list[Curve], across: AxisScale, up: AxisScale, axis: Axis, named: bool) -> str:
    """Return the values for hovering as JSON in an attribute, with six digits."""
    shown = [
        {
            "l": curve.label if named else "",
            "c": curve.color % COLORS,
            "r": curve.color,
            "x": _rounded(curve.x),
            "y": [None if math.isnan(y) else float(f"{y:.6g}") for _, y in curve.points],
            **({"m": _mean(curve)} if curve.smoothed else {}),
        }
        for curve in curves
    ]
    facts = {
        "w": axis.word,
        "t": axis.clock,
        "x": [across.low, across.high],
        "y": [up.low, up.high],
        "log": up.log,
        "s": shown,
    }
    return html.escape(json.dumps(facts, separators=(",", ":"), ensure_ascii=False))


def _mean(curve: Curve) -> list[list[float]]:
    """Return the points of the mean as [all x, all y]."""
    x, y = zip(*curve.smoothed, strict=True)
    return [_rounded(list(x)), [float(f"{one:.6g}") for one in y]]


def _rounded(values: list[float]) -> list[float]:
    return [int(value) if value == int(value) else round(value, 2) for value in values]


def _unit(name: str, up: AxisScale) -> str:
    unit = names_unit(name)
    reported = f' <span class="unit">{html.escape(unit)}</span>' if unit else ""
    return f'{reported} <span class="unit logs"{"" if up.log else " hidden"}>log scale</span>'


def _lost(lost: int) -> str:
    return (
        f' <span class="bad">{lost} value{"s" if lost > 1 else ""} not finite</span>'
        if lost
        else ""
    )


def _spoken(name: str, curves: list[Curve]) -> str:
    ends = [f"{curve.label} ends at {curve.known[-1]:.4g}" for curve in curves[:COLORS]]
    return f"{names_title(name)}: {'; '.join(ends)}"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:g} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02} h" if hours else f"{minute}:{second:02}"


def metric_names(runs: list[LoggedRun], system: bool) -> list[str]:
    """Return all names in order of appearance, without system metrics that are always zero."""
    found: dict[str, bool] = {}
    for run in runs:
        for lines in (run.system if system else run.metrics).values():
            for point in lines.points:
                for name, value in point.values.items():
                    found[name] = found.get(name, not system) or value != 0
    return [name for name, worth in found.items() if worth]


def training(runs: list[LoggedRun], name: str) -> list[Curve]:
    """Return the values of each run's first rank. Reduced values are equal on all ranks."""
    return [curve for color, run in enumerate(runs) for curve in _first_rank(run, name, color)]


def _first_rank(run: LoggedRun, name: str, color: int) -> Iterator[Curve]:
    for lines in run.metrics.values():
        points = [
            (float(point.step), point.values[name])
            for point in lines.points
            if name in point.values and point.step is not None
        ]
        if points:
            yield series(run.label, color, points)
            return


def system(runs: list[LoggedRun], name: str) -> list[Curve]:
    """Return a curve for each rank.

    A single run has a colour for each rank. Several runs have a colour each, which is fainter for
    ranks after the first.
    """
    of_ranks = [
        (number, run, rank, points)
        for number, run in enumerate(runs)
        for rank, lines in run.system.items()
        if (points := over_time(lines, name))
    ]
    if len(runs) == 1:
        return [series(f"rank {rank}", rank, points) for _, _, rank, points in of_ranks]
    return [
        series(f"{run.label}, rank {rank}", number, points, faint=rank != min(run.system))
        for number, run, rank, points in of_ranks
    ]


def over_time(lines: RankFile, name: str) -> list[tuple[float, float]]:
    return [
        (point.time_s, point.values[name])
        for point in lines.points
        if name in point.values and math.isfinite(point.time_s)
    ]


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


def names_title(name: str) -> str:
    """Return a metric's title without the unit. Names from the user are returned as they are."""
    base, number = _split(name)
    return f"{TITLES[base]} {number}".strip() if base in TITLES else name


def _split(name: str) -> tuple[str, str]:
    """Split "lr_2/group0", the rate of the second optimizer's first group, after "lr"."""
    match = re.fullmatch(r"([^/]+?)(_\d+)?(?:/(?:group)?(.+))?", name)
    if match is None or match[1] not in TITLES:
        match = re.fullmatch(r"(.+?)((?:_\d+)?(?:/\d+)?)", name)
    parts = match.groups()[1:] if match else ()
    return (match[1], " ".join(part.strip("_/") for part in parts if part)) if match else (name, "")


def names_unit(name: str) -> str:
    base, _ = _split(name)
    if base in SPECIAL_UNITS:
        return SPECIAL_UNITS[base]
    return UNITS.get(base.rsplit("_", 1)[-1], "") if base in TITLES else ""


def in_order(names: list[str], system: bool) -> list[str]:
    """Sort names: losses, then the user's other metrics, then values that a session logs itself.

    System metrics are in the order of ``TITLES``.
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
