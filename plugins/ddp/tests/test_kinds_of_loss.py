"""Losses of many kinds give the numbers of one process, without an option and without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.torch_version import TorchVersion
from torchbus.plugin import UsageError

from torchbus_ddp._compat import refuse_complex
from torchbus_testing.forking import fork_script

SCRIPT = Path(__file__).parent / "scripts" / "kinds_of_loss.py"


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_numbers_are_those_of_one_process(ranks: int) -> None:
    apart = json.loads(fork_script(SCRIPT, ranks).ok().stdout)
    assert {name: value for name, value in apart.items() if not value < 1e-10} == {}


def test_a_torch_that_sends_no_complex_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spectrum = [torch.ones(2, dtype=torch.complex64), torch.ones(2)]
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.10.0"))
    with pytest.raises(UsageError, match="complex parameters on CPUs need torch 2.11 or later"):
        refuse_complex(spectrum)
    refuse_complex(spectrum[1:])
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.11.0"))
    refuse_complex(spectrum)
