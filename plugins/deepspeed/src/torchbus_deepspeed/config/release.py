"""Which release of DeepSpeed is installed, and what it has."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from torchbus.plugin import UsageError

OLDEST = (0, 19)
MISSING = (
    "strategy='{}' needs DeepSpeed, which is not installed: DS_BUILD_OPS=0 pip install"
    " --no-build-isolation 'deepspeed>=0.19'"
)
TOO_OLD = (
    "strategy='{}' needs DeepSpeed 0.19 or later, and {} is installed: DS_BUILD_OPS=0 pip install"
    " --no-build-isolation 'deepspeed>=0.19'"
)


def require_deepspeed(strategy: str) -> None:
    """Raise UsageError if DeepSpeed is not installed, or too old. Imports nothing."""
    try:
        found = version("deepspeed")
    except PackageNotFoundError:
        raise UsageError(MISSING.format(strategy)) from None
    if tuple(int(number) for number in found.split("+")[0].split(".")[:2]) < OLDEST:
        raise UsageError(TOO_OLD.format(strategy, found))
