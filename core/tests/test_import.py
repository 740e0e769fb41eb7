"""``import torchbus`` costs little more than ``import torch``: it imports no plugin, and nothing of
torch that is heavy.
"""

from __future__ import annotations

import json

import pytest

from torchbus_testing.scripts import run_script

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
    assert {"torchbus_testing", "torchbus_cli.main"}.isdisjoint(added)


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
        ("torchbus_strategy.strategy", False),
        ("torchbus_sharded.strategy", True),
    ],
)
def test_only_strategies_that_divide_parameters_import_dtensors(door: str, imported: bool) -> None:
    result = run_script(f"import sys, {door}; print('torch.distributed.tensor' in sys.modules)")
    assert result.ok() and result.stdout == f"{imported}\n"


@pytest.mark.parametrize(("version", "status"), [("2.5.1+cpu", 1), ("2.6.0", 0), ("2.10.0", 0)])
def test_an_older_torch_is_refused_in_one_sentence(version: str, status: int) -> None:
    result = run_script(f"""
        import torch
        torch.__version__ = torch.torch_version.TorchVersion("{version}")
        import torchbus
    """)
    words = (
        "ImportError: torchbus needs torch 2.6 or later, and this is torch 2.5.1+cpu: pip instal"
    )
    assert result.ok(status) and (words in result.stderr) is bool(status)
