"""A batch in which nothing counts: all ranks read one loss, which is that of one process."""

from __future__ import annotations

import math

import pytest
from ranks import facts

MASKED = """
        net = nn.Linear(4, 1)
        data = TensorDataset(torch.ones({size}, 4), (torch.arange({size}) < {size} - 2).double())
        read = []
        for x, mask in DataLoader(data, batch_size=4):
            loss = (net(x)[:, 0].square() * mask).sum() / {divisor}
            loss.backward()
            read.append(loss.item())
        found["read"] = s.all_gather_object(read)
"""
"""The last batch has two samples: only rank 0 has any of its own, and they are masked."""


@pytest.mark.parametrize(("ranks", "size"), [(2, 18), (3, 14)])
@pytest.mark.parametrize(
    ("divisor", "last"), [("mask.sum().clamp(min=1)", 0.0), ("mask.sum()", math.nan)]
)
def test_every_rank_reads_the_same_loss(divisor: str, last: float, ranks: int, size: int) -> None:
    read = facts(MASKED.format(divisor=divisor, size=size), ranks=ranks)["read"]
    assert all(one[-1] == pytest.approx(last, nan_ok=True) for one in read)
    assert all(one[:-1] == read[0][:-1] and min(one[:-1]) > 0 for one in read)


LEAF = """
        leaf = torch.zeros(2, requires_grad=True)
        optimizer = torch.optim.SGD([leaf], lr=0.1)
        leaf.sum().backward()
        found["gradient"] = leaf.grad.tolist()
"""


def test_a_tensor_of_an_optimizer_is_a_parameter_where_its_loss_is_zero() -> None:
    assert facts(LEAF, ranks=2)["gradient"] == [1.0, 1.0]


UNUSED = """
        net, never, rare = nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(4, 1)
        models = nn.ModuleList([net, never, rare])
        optimizer = torch.optim.AdamW(models.parameters(), lr=0.1)
        data = TensorDataset(torch.ones({size}, 4), (torch.arange({size}) < {size} - 2).double())
        for x, mask in DataLoader(data, batch_size=4):
            out = net(x)[:, 0] if mask.any() else rare(x)[:, 0]
            ((out.square() * mask).sum() / mask.sum().clamp(min=1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found["models"] = {{name: one.flatten().tolist() for name, one in models.state_dict().items()}}
"""
"""The last batch alone uses ``rare``, with gradients of zero."""


@pytest.mark.parametrize("strategy", ["ddp", "ddp_sharded"])
@pytest.mark.parametrize(("ranks", "size"), [(2, 18), (3, 14)])
def test_only_parameters_with_a_gradient_decay(strategy: str, ranks: int, size: int) -> None:
    alone, together = (
        facts(UNUSED.format(size=size), "batch='global'", ranks=number, strategy=strategy)["models"]
        for number in (1, ranks)
    )
    assert together == {name: pytest.approx(value) for name, value in alone.items()}


PLAIN = """
        log_alpha = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([log_alpha], lr=0.1)
        data = TensorDataset(torch.arange(21.0)[:, None] / 10)
        for (entropy,) in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            (-(log_alpha.exp() * (entropy - 0.3)).mean()).backward()
            optimizer.step()
        found["log_alpha"] = log_alpha.item()
"""


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "ddp"), (3, "ddp"), (2, "ddp_sharded")])
def test_a_plain_tensor_of_an_optimizer_has_no_samples(ranks: int, strategy: str) -> None:
    """Though it is broadcast to the dimension of one: as the temperature of soft actor-critic."""
    alone, together = (
        facts(PLAIN, "batch='global'", ranks=number, strategy=strategy)["log_alpha"]
        for number in (1, ranks)
    )
    assert together == pytest.approx(alone)


LATE = """
        net, late = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(22, 4), torch.arange(22) % 3)
        for epoch in range(2):
            if epoch == 1:
                optimizer.add_param_group({"params": [late]})
            for x, y in DataLoader(data, batch_size=8):
                nn.functional.cross_entropy(net(x) + late, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        found["late"] = late.tolist()
"""


@pytest.mark.parametrize("options", ["", ", accumulate_grad_batches=2"])
def test_gradients_from_before_an_optimizer_had_the_parameter(options: str) -> None:
    """They add up until then, as its ``zero_grad`` does not know the parameter.

    The last batch has a row on each rank for each element of it, which it does not belong to.
    """
    alone, together = (
        facts(LATE, f"batch='global', seed=1{options}", ranks=number)["late"] for number in (1, 2)
    )
    assert together == pytest.approx(alone)
