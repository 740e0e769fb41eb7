"""Models on the meta device that get no values."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchbus import session
from torchbus.errors import UsageError

from torchbus_testing.forking import fork_script

HEAD = (Path(__file__).parent / "scripts" / "meta_head.py").read_text()

REFUSED = {
    "nobody knows": (
        "Own.reset_parameters = None; del Own.reset_parameters",
        "",
        "Sequential.1 (Own) has weight, mask on the meta device and has no reset_parameters(): give it reset_parameters(), or pass param_init_fn=...",
    ),
    "a buffer is left": (
        "Own.reset_parameters = lambda self: self.weight.fill_(1.0)",
        "",
        "Sequential.1 (Own) has mask on the meta device, and its reset_parameters() gives it no values: give it reset_parameters()",
    ),
    "a parameter is left": (
        "Own.reset_parameters = lambda self: self.mask.fill_(True)",
        "",
        "Sequential.1 (Own) has weight on the meta device, and its reset_parameters() gives it no values",
    ),
    "the function leaves what no state_dict has": (
        "",
        "param_init_fn=lambda module: None",
        "Sequential.1 (Own) has mask on the meta device, and param_init_fn gives it no values",
    ),
}
OWN = """
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2))
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool), persistent=False)
"""


@pytest.mark.parametrize(
    "case",
    [
        name if name == "a buffer is left" else pytest.param(name, marks=pytest.mark.slow)
        for name in REFUSED
    ],
)
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_refused(case: str, ranks: int):
    change, options, words = REFUSED[case]
    body = f"{HEAD}{OWN}{change}\nwith opened({ranks}, {options}) as s:\n    made(lambda: nn.Sequential(nn.Linear(2, 2), Own()))\n"
    result = fork_script(body, timeout_s=60)
    assert result.ok(1) and f"UsageError: {words}" in result.stderr


def test_a_function_that_is_none():
    with pytest.raises(
        UsageError, match="param_init_fn='ones': it must be a function of a module, or None"
    ):
        session(strategy="fsdp", param_init_fn="ones")


def test_a_tensor_of_no_module_is_refused():
    body = """
with opened() as s:
    weight = nn.Parameter(torch.ones(3, device="meta"))
    torch.optim.Adam([weight])
"""
    result = fork_script(HEAD + body, timeout_s=60).ok(1)
    words = (
        "Adam: tensors of shape (3,) are on the meta device, and in no module that has a forward"
    )
    assert words in result.stderr, result.stderr
