"""``import torchbus`` costs little more than ``import torch``: it imports no plugin, and nothing of
torch that is heavy.
"""

from __future__ import annotations

import json

import pytest
import torch
from torchbus.testing import run_script

HEAVY = (
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "torch.distributed.fsdp",
    "torch.onnx",
    "torch.testing",
    "numpy.testing",
    "venv",
    "pytest",
)


@pytest.fixture(scope="module")
def added() -> list[str]:
    """Modules that ``import torchbus`` loads beyond those of ``import torch``."""
    result = run_script("""
        import json, sys
        import torch, torch.utils.data, torch.distributed
        before = set(sys.modules)
        import torchbus
        print(json.dumps(sorted(set(sys.modules) - before)))
    """)
    assert result.ok()
    return json.loads(result.stdout)


def test_it_imports_no_plugin(added):
    assert [name for name in added if name.startswith("torchbus_")] == []


def test_it_imports_no_tools_of_its_own(added):
    assert {"torchbus.testing", "torchbus._cli"}.isdisjoint(added)


def test_it_imports_nothing_heavy(added):
    assert [name for name in added if name.startswith(HEAVY)] == []
    strangers = {name.split(".")[0] for name in added} - {"torchbus", "pluggy"}
    assert len(added) < 200, strangers  # most are small ones of our own


def test_it_says_what_is_public():
    import torchbus

    assert sorted(torchbus.__all__) == torchbus.__all__ or set(torchbus.__all__) <= set(
        vars(torchbus)
    )
    assert all(getattr(torchbus, name).__doc__ for name in torchbus.__all__)


@pytest.mark.parametrize(
    ("door", "imported"),
    [
        ("torchbus.plugin", False),
        pytest.param(
            "torchbus.plugin.dtensors",
            True,
            marks=pytest.mark.skipif(torch.__version__ < "2.6", reason="needs torch 2.6"),
        ),
    ],
)
def test_only_strategies_that_divide_parameters_import_dtensors(door: str, imported: bool) -> None:
    result = run_script(f"import sys, {door}; print('torch.distributed.tensor' in sys.modules)")
    assert result.ok() and result.stdout == f"{imported}\n"
