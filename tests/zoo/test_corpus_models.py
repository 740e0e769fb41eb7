"""What scripts from public repositories taught of models: lazy ones, drawn weights, averages."""

from __future__ import annotations

import pytest
from ranks import facts, run

NET = """
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def train(dataset, size=2, shuffle=False, then=lambda: None):
            for (x,) in DataLoader(dataset, batch_size=size, shuffle=shuffle):
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()
                then()
"""


def test_a_lazy_model_is_found_once_its_first_call_has_given_it_shapes() -> None:
    found = facts(
        NET
        + """
        lazy = nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d(), nn.LazyLinear(1))
        lazy(torch.rand(4, 3))
        optimizer = torch.optim.SGD(lazy.parameters(), lr=0.1)
        net = lazy
        train(TensorDataset(torch.rand(8, 3)))
        found["alike"] = [torch.equal(*s.all_gather(p)) for p in [*lazy.parameters(), *lazy.buffers()]]
        found["models"] = " ".join(s.explain().split()).count("synchronised in backward")
        """
    )
    assert all(found["alike"])
    assert found["models"] == 1


def test_an_optimizer_over_parameters_without_values_is_refused() -> None:
    result = run(
        "lazy = nn.Sequential(nn.LazyLinear(1)); torch.optim.SGD(lazy.parameters(), lr=0.1)"
    )
    assert result.status
    assert (
        "UsageError: Sequential has lazy parameters, which get their values in its first call"
        in result.stderr
    )


@pytest.mark.parametrize("place", ["in a pass", "between passes"])
def test_weights_that_are_drawn_anew_in_training(place: str) -> None:
    """Lottery tickets, restarts: each rank draws for itself in a pass, and alike between passes."""
    drawing = "then=net.reset_parameters" if place == "in a pass" else ""
    result = run(
        NET
        + f"""
        whole = TensorDataset(torch.arange(24.0).reshape(8, 3) / 24)
        train(whole, {drawing})
        net.reset_parameters() if {not drawing} else None
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        train(whole)
        """
    )
    refused = place == "in a pass"
    assert bool(result.status) is refused
    words = "redraw weights after model.eval()"
    assert (words in result.stderr) is refused


def test_statistics_of_an_averaged_model_over_a_loader_of_its_own_are_alike() -> None:
    """Stochastic weight averaging: over the loader that has trained, they are those of each rank's
    share.
    """
    found = facts(
        NET
        + """
        from torch.optim.swa_utils import update_bn
        whole = TensorDataset(torch.arange(72.0).reshape(24, 3) / 72)
        train(whole)
        averaged = nn.Sequential(nn.BatchNorm1d(3))
        update_bn(DataLoader(whole, batch_size=24), averaged)
        found["error"] = (averaged[0].running_mean - whole.tensors[0].mean(0)).abs().max().item()
        """
    )
    assert found["error"] < 1e-12
