"""Tests within a time, for ``make.py quick``: those that were fast the last time come first, and
those for which no time is left are skipped."""

from __future__ import annotations

import time

import pytest

TOOK = "torchbus/seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", type=float, default=45.0, help="begin no test after this time")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Quick(config), "quick.tests")


class Quick:
    def __init__(self, config: pytest.Config) -> None:
        self._cache = getattr(config, "cache", None)
        self._took: dict[str, float] = self._cache.get(TOOK, {}) if self._cache is not None else {}
        self._seconds: float = config.getoption("seconds")
        self._unknown = self._seconds / 10  # of a test that has not run here yet
        self._until: float | None = None
        self._begins = not hasattr(config, "workerinput")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._took.get(item.nodeid, 0.0))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._until is None:
            self._until = time.monotonic() + self._seconds
        elif time.monotonic() > self._until - self._took.get(item.nodeid, self._unknown):
            pytest.skip("no time is left; `make.py test` with this path runs it")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._took[report.nodeid] = round(report.duration, 2)

    def pytest_sessionfinish(self) -> None:
        if self._begins and self._cache is not None:
            self._cache.set(TOOK, self._took)
