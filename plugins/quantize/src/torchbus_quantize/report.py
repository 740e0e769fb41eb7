"""What was done to a model, in words."""

from __future__ import annotations

from dataclasses import dataclass, field

SHOWN = 4


@dataclass
class Done:
    """The layers of a model that are quantised, those that are left, and bytes."""

    layers: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    before: int = 0
    after: int = 0

    def add(self, path: str, before: int, after: int) -> None:
        self.layers.append(path)
        self.before += before
        self.after += after

    def words(self, name: str, library: str) -> str:
        """For ``explain()``."""
        if not self.layers:
            return "nothing quantised: no frozen linear layer"
        sizes = f"{_bytes(self.before)} are now {_bytes(self.after)}"
        kept = reasons({path: why for path, why in self.left.items() if why != "trained"})
        rest = f"; left as they are: {kept}" if kept else ""
        many = f"{len(self.layers)} frozen layer{'s' if len(self.layers) > 1 else ''}"
        return f"weights of {many} in {name} by {library}: {sizes}{rest}"


def reasons(left: dict[str, str]) -> str:
    """The layers by reason, the first few of them."""
    by_reason: dict[str, list[str]] = {}
    for path, why in left.items():
        by_reason.setdefault(why, []).append(path or "the model itself")
    return "; ".join(f"{few(paths)} ({why})" for why, paths in by_reason.items())


def few(paths: list[str]) -> str:
    more = len(paths) - SHOWN
    return ", ".join(paths[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
