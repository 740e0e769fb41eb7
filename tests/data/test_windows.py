"""Accumulation windows beside evaluations and loops that leave a pass, on one and two ranks."""

from __future__ import annotations

import pytest
from ranks import facts

TRAIN = """
def train(place, stops, with_gradients):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(30, 3))
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    held_out = DataLoader(TensorDataset(torch.randn(9, 3)), batch_size=4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for number, (x,) in enumerate(loader):
            loss = model(x).square().mean()
            for here in ("between", "after", "end"):
                if here == place and number == (7 if place == "end" else 1):
                    model.eval()
                    with torch.set_grad_enabled(with_gradients):
                        for (rows,) in held_out:
                            shown = model(rows).square().mean()  # lives on, with its graph
                            if stops:
                                break
                    model.train()
                if here == "between":
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
    return [p.sum().item() for p in model.parameters()]
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_with_gradients_does_not_move_a_window(ranks: int) -> None:
    found = facts(
        """
        for place in ("between", "after", "end"):
            for stops in (False, True):
                both = [train(place, stops, with_gradients) for with_gradients in (False, True)]
                found[f"{place} {stops}"] = both[0] == both[1]
        """,
        "accumulate_grad_batches=3",
        before=TRAIN,
        ranks=ranks,
    )
    assert len(found) == 6 and all(found.values()), found


@pytest.mark.parametrize("options", ["{}, batch='global'", "batch='global', {}"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_window_of_a_pass_that_the_loop_left_is_stepped_before_the_next(
    ranks: int, options: str
) -> None:
    """Whatever the order of the options, which is that of the listeners."""
    found = facts(
        """
        weight = nn.Parameter(torch.zeros(()))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        loader = DataLoader(TensorDataset(torch.ones(16)), batch_size=2)
        for number, (x,) in enumerate(loader):
            (weight * x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 3:
                break
        found["left"] = weight.item()
        with torch.no_grad():
            next(iter(loader))
        found["next"] = weight.item()
        """,
        options.format("accumulate_grad_batches=3"),
        ranks=ranks,
    )
    assert found == {"left": pytest.approx(-1), "next": pytest.approx(-2)}
