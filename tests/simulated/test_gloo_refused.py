"""gloo on an accelerator, for strategies that gather or send: torch ends the process with SIGSEGV."""

from __future__ import annotations

import json

import pytest

import torchbus_simulator as accelerator
from torchbus_testing.forking import fork_script

REASON = accelerator.missing()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(400),  # the first test may have to build the device
]
SCRIPT = """
    import json, sys
    from torchbus import session
    import torchbus_simulator as accelerator

    accelerator.load(devices=2)
    with session(devices=2, backend="cpu:gloo,sim:gloo", launch="fork", **json.loads(sys.argv[1])):
        raise AssertionError("the loop must not run")
"""


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "fsdp"},
        {"strategy": "tp", "plan": {"0": "colwise"}},
        {"strategy": "pipeline"},
    ],
    ids=lambda options: options["strategy"],
)
def test_the_session_refuses_it(options):
    result = fork_script(SCRIPT, json.dumps(options), timeout_s=380)
    assert result.ok(1)
    assert (
        f"strategy='{options['strategy']}' with backend='cpu:gloo,sim:gloo' on sim: gloo averages"
        " tensors of a GPU, and ends the process if it is to gather or send them. Use"
        " backend='simccl', which is the default, or strategy='ddp'"
    ) in result.stderr
