"""``@pytest.mark.share(3)``: of the rows of a parametrized test, every third runs in the quick
suite, and the others count as slow. A row whose turn it is does not change from run to run."""

from __future__ import annotations

from collections import Counter

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rows: Counter[str] = Counter()
    for item in items:
        share = item.get_closest_marker("share")
        if share is None or item.get_closest_marker("slow"):
            continue
        function = item.nodeid.partition("[")[0]
        if rows[function] % share.args[0]:
            item.add_marker(pytest.mark.slow)
        rows[function] += 1
