"""A resumed run logs the steps that follow those of the run before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session

from torchbus_testing.recorder import RecordingLogger


def train(folder: Path, dies_after: int | None = None) -> list[int]:
    """The steps under which the loss was logged."""
    torch.manual_seed(0)
    hears, made = RecordingLogger(), 0
    with session(
        checkpoint=str(folder),
        every_n_steps=2,
        async_save=False,
        logger=hears,
        log_every_n_steps=1,
        autolog=False,
    ) as s:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(torch.arange(6.0).reshape(6, 1))
        for _ in s.epochs(2):
            for x in loader:
                optimizer.zero_grad()
                loss = model(x).pow(2).mean()
                loss.backward()
                optimizer.step()
                s.log("loss", loss)
                made += 1
                if made == dies_after:
                    raise KeyError("power cut")
    return [step for step, _ in hears.of("loss")]


def test_steps_go_on(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        train(tmp_path / "cut", dies_after=5)
    whole = train(tmp_path / "whole")
    resumed = train(tmp_path / "cut")
    assert sorted(set(whole)) == list(range(1, 13))
    assert resumed == whole[-len(resumed) :] and resumed[0] == 5
