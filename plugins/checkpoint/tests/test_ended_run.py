"""A run that had ended, started again."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session


def run(folder, count):
    """Train; return what the code after each epoch has seen."""
    seen = []
    with session(strategy=None, checkpoint=folder) as s:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in s.epochs(count) if count else range(2):
            for x in DataLoader(torch.ones(8, 2), batch_size=4):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            seen.append(model.bias.item())
    return seen


def test_what_it_leaves_out_is_said(tmp_path):
    run(tmp_path, 0)
    with pytest.warns(UserWarning, match="this run had already ended, so nothing was trained"):
        run(tmp_path, 0)


def test_over_epochs_nothing_is_left_out_after_the_loop(tmp_path, recwarn):
    seen = run(tmp_path, 2)
    assert len(seen) == 2 and run(tmp_path, 2) == seen  # a variable of the loop, restored
    assert not recwarn.list


def train(epochs):
    """Train in a function, whose variables are gone when the block ends."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    criterion = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
    for _ in epochs:
        for x in DataLoader(torch.ones(8, 2), batch_size=4):
            optimizer.zero_grad()
            scaler.scale(criterion(model(x), torch.zeros(4, dtype=torch.long))).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
    return model.bias.tolist()


def trained(folder, count):
    with session(strategy=None, checkpoint=folder) as s:
        return train(s.epochs(count))


@pytest.mark.parametrize("more", [0, 1])
def test_what_a_function_had_is_in_the_last_checkpoint(tmp_path, more):
    """Also what no optimizer holds: the weights of a criterion, a scaler."""
    trained(tmp_path / "kept", 2)
    again = trained(tmp_path / "kept", 2 + more)
    with session(strategy=None):
        assert again == train(range(2 + more))
