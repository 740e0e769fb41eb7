"""The simulated accelerator is a separate device: memory, waits, streams, limits."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchbus_simulator as accelerator
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"
REASON = accelerator.missing()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(400),  # the first test may have to build the device
]


BASICS = """\
sim 2
used already: False
sim:0 False True
Expected all tensors to be on the same device, but found at
Expected all tensors to be on the same device, but found at
can't convert sim:0 device type tensor to numpy. Use Tensor
trains as the CPU: True []
trains as the CPU: True []
['item', 'item', 'aten::nonzero', 'blocking copy to the device', 'synchronize'] True
random: True True
4194304
sim out of memory. Tried to allocate 4 MiB. Device 0 has a t
8388608
"""


def test_a_device_of_its_own() -> None:
    result = fork_script(SCRIPTS / "sim_basics.py", timeout_s=380)
    assert result.ok(), result
    assert result.stdout == BASICS


@pytest.mark.parametrize(
    ("waits", "right"),
    [("yes yes yes", True), ("no yes yes", False), ("yes no yes", False), ("yes yes no", False)],
)
def test_a_missing_wait_gives_wrong_numbers(waits: str, right: bool) -> None:
    result = fork_script(SCRIPTS / "sim_late.py", *waits.split())
    assert result.ok()
    assert (result.stdout == "[2.0, 2.0, 2.0, 2.0]\n") is right
