"""A test may take longer on a loaded machine, as the scripts of ``torchbus_testing`` may."""

from __future__ import annotations

import pytest
import pytest_timeout


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> object:
    from torchbus_testing.processes import stretched  # it imports torch, which a worker does later

    stretched_s = stretched(settings.timeout)
    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=stretched_s))
