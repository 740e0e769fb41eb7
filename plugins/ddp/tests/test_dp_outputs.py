"""dp learns from sizes which outputs have rows of the batch: also where the sizes coincide."""

from __future__ import annotations

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = """
    import json, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from torchbus import session

    torch.set_default_dtype(torch.float64)

    class Net(nn.Module):
        def __init__(self, rows):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.table = nn.Parameter(torch.randn(rows, 2))

        def forward(self, x):
            z = self.linear(x)
            return {
                "rows": z,
                "several rows": z.reshape(-1),
                "fixed": [self.table.tanh(), self.table.tanh()[:, 0]],
                "number": z.square().mean(),
                "float": 0.5,
                "integer": torch.tensor(7),
                "integers": torch.arange(len(self.table)),
            }

    def trained(s, size, rows):
        # outputs of the first call, one of whose sizes is that of the batch, of a share, or of neither
        torch.manual_seed(0)
        net, found = Net(rows), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (x,) in DataLoader(TensorDataset(torch.randn(2 * size + 2, 3)), batch_size=size):
            out = net(x)
            shapes = [list(out[name].shape) for name in ("rows", "several rows", "integers")]
            number = out["number"].item()
            parts = [out["rows"].square().mean(), out["several rows"].abs().mean(), out["number"]]
            loss = sum(parts) + sum(one.square().sum() for one in out["fixed"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found += [shapes, number, loss.item(), out["float"], out["integer"].item()]
        return found + [one.tolist() for one in net.parameters()]

    options = {"strategy": "dp", "loss_reduction": "mean"} if RANKS > 1 else {}
    with session(**options, devices=RANKS, launch="fork" if RANKS > 1 else "auto", accelerator="cpu") as s:
        print(json.dumps({f"{size} {rows}": trained(s, size, rows) for size, rows in ((4, 2), (4, 4), (4, 8), (6, 2), (6, 3))}))
"""


def flat(value: object) -> list[float]:
    return [one for part in value for one in flat(part)] if isinstance(value, list) else [value]  # type: ignore[list-item]


@pytest.mark.parametrize("ranks", [2, 3])
def test_outputs_are_those_of_one_process_whatever_their_sizes(ranks: int) -> None:
    alone, found = (fork_script(SCRIPT.replace("RANKS", str(one))).json() for one in (1, ranks))
    assert {case: flat(one) for case, one in found.items()} == {
        case: pytest.approx(flat(one)) for case, one in alone.items()
    }
