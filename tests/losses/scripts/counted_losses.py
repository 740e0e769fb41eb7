"""Losses that are means over something else than samples, on N ranks and in windows, against one
big batch in one process.

Called with a JSON dict: strategy, devices, window, batch ("per_device" or "global"), cases, but
(cases to leave out), accelerator ("sim": the ranks compute on simulated devices); prints the
largest difference of any parameter, and of the printed losses, for each case.
"""

import json
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

import torchbus_simulator as accelerator

warnings.simplefilter("ignore")
torch.set_num_threads(1)
asked = json.loads(sys.argv[1])
KIND = asked.get("accelerator", "cpu")
if KIND == "sim":
    accelerator.load(devices=asked["devices"])
B, SAMPLES = 4, asked.get("samples", 45)
g = torch.Generator().manual_seed(5)
X = torch.randn(SAMPLES, 6, generator=g, dtype=torch.float64)
LABELS = torch.randint(0, 3, (SAMPLES, 5), generator=g)
IGNORED = torch.rand(SAMPLES, 5, generator=g) < torch.rand(SAMPLES, 1, generator=g)
IGNORED[12:16] = True  # a rank's whole share
IGNORED[0] = False
LABELS[IGNORED] = -100
CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
rows = {"size": 0}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 15)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def ce(z, y, **options):
    return F.cross_entropy(z.view(-1, 3), y.reshape(-1), **options)


def squares(z, y):
    return (z.view(-1, 5, 3).sum(-1) - 1).square() / 10


def detr(z, y):
    """The divisor is normalised over ranks by the script."""
    number = (y >= 0).double().sum()
    if dist.is_initialized():
        dist.all_reduce(number)
        number = number / dist.get_world_size()
    return (squares(z, y) * (y >= 0)).sum() / number.clamp(min=1).item()


CASES = {
    "ignored": lambda z, y: ce(z, y),
    "class weights": lambda z, y: ce(z, y.clamp(min=0), weight=CLASS_WEIGHTS.to(z.device)),
    "smoothed": lambda z, y: ce(z, y, label_smoothing=0.1),
    "smoothed, class weights": lambda z, y: ce(
        z, y, label_smoothing=0.1, weight=CLASS_WEIGHTS.to(z.device)
    ),
    "2d": lambda z, y: F.cross_entropy(
        z.view(-1, 5, 3).transpose(1, 2).unsqueeze(2), y.unsqueeze(1)
    ),
    "masked mean": lambda z, y: squares(z, y)[y >= 0].mean(),
    "mask.sum()": lambda z, y: (squares(z, y) * (y >= 0)).sum() / (y >= 0).sum(),
    "max(mask.sum(), 1)": lambda z, y: (
        (squares(z, y) * (y >= 0)).sum() / max((y >= 0).sum().item(), 1)
    ),
    "times 1/n": lambda z, y: (
        (squares(z, y) * (y >= 0)).sum() * (1 / (y >= 0).double().sum().clamp(min=1))
    ),
    "several terms": lambda z, y: 0.5 * ce(z, y) + torch.stack([ce(2 * z, y), 3 * ce(z, y)]).mean(),
    "bce": lambda z, y: F.binary_cross_entropy_with_logits(
        z, (z.detach() > 0).double(), pos_weight=torch.tensor(2.0, dtype=torch.float64).to(z.device)
    ),
    "sum over rows": lambda z, y: squares(z, y).sum() / len(z),
    "batchmean": lambda z, y: F.kl_div(
        z.view(-1, 3).log_softmax(1),
        z.detach().view(-1, 3).softmax(1).flip(1),
        reduction="batchmean",
    ),
    "sum over a constant": lambda z, y: squares(z, y).sum() / rows["size"],
    "mean": lambda z, y: squares(z, y).mean(),
    "over what all ranks have": detr,
    "with decay": lambda z, y: (
        ce(z, y) + 1e-2 * sum(p.square().sum() for p in rows["model"].parameters())
    ),
}


def train(loss, batch, device="cpu"):
    torch.manual_seed(0)
    model = rows["model"] = Net().double().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    rows["size"] = batch
    printed = []
    for x, y in DataLoader(TensorDataset(X, LABELS), batch_size=batch):
        optimizer.zero_grad()
        value = loss(model(x.to(device)), y.to(device))
        value.backward()
        printed.append(value.item())
        optimizer.step()
    state = [p.detach().reshape(-1).cpu() for p in model.state_dict().values()]
    return torch.cat(state), torch.tensor(printed, dtype=torch.float64)


def difference(name):
    window, whole = asked.get("window", 1), asked.get("batch") == "global"
    batch = B * asked["devices"] if whole else B
    parts = 1 if whole or asked["strategy"] == "dp" else asked["devices"]
    options = {
        name: asked[name]
        for name in ("strategy", "devices", "batch", "loss_weight")
        if name in asked
    }
    with session(
        **options,
        accelerator=KIND,
        launch="fork",
        **({"accumulate_grad_batches": window} if window > 1 else {}),
    ):
        got, told = train(CASES[name], batch, KIND)
    want, losses = train(CASES[name], batch * parts * window)
    return [
        float((got - want).abs().max()),
        float((told - losses).abs().max()) if window == 1 else 0.0,
    ]


def sums():
    """One big batch, and windows of small ones whose losses are sums."""

    def loop(batch):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        for x in DataLoader(torch.arange(1.0, 13.0, dtype=torch.float64), batch_size=batch):
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()
        return weight.item()

    with session(
        strategy=asked["strategy"],
        devices=2,
        accelerator="cpu",
        launch="fork",
        loss_reduction="sum",
        accumulate_grad_batches=3,
    ):
        got = loop(2)
    return [abs(got - loop(12)), 0.0]


def own_batches():
    """Batches that the script makes itself, divided, their losses over a constant; the last one is
    smaller.
    """

    def loop(share):
        torch.manual_seed(0)
        model = Net().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for start in range(0, SAMPLES, 16):
            x, y = share((X[start : start + 16], LABELS[start : start + 16]))
            optimizer.zero_grad()
            value = squares(model(x), y).sum() / 16
            value.backward()
            optimizer.step()
        return torch.cat(
            [p.detach().reshape(-1) for p in model.state_dict().values()]
        ), value.item()

    want, loss = loop(lambda batch: batch)
    with session(strategy=asked["strategy"], devices=2, accelerator="cpu", launch="fork") as s:
        got, told = loop(s.shard)
    return [float((got - want).abs().max()), abs(told - loss)]


OTHERS = {"sums": sums, "own batches": own_batches} if asked.get("others") else {}
chosen = [name for name in asked.get("cases") or CASES if name not in asked.get("but", ())]
print(
    json.dumps(
        {name: difference(name) for name in chosen}
        | {name: case() for name, case in OTHERS.items()}
    )
)
