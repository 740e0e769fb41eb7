"""What a loop makes of its batches that depends on the rank's share, by its source."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path

import pytest
import torch

from torchbus_sampler.dependent import ShareDependence, adds
from torchbus_sampler.loop_program import facts_of
from torchbus_testing import fork_script

STATISTICS = """
def scaled(a):
    return a / a.amax()

def train(loader, model, optimizer, x):
    centre, width = x.mean(0), x.std(0)
    for x, y in loader:
        {before}
        loss = criterion(model(x), y)
        {after}
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("before", "names"),
    [
        ("x = (x - x.mean()) / (x.std() + 1e-6)", ["x.mean()", "x.std()"]),
        ("y = (y - torch.mean(y, dim=0)) / y.std(0)", ["torch.mean(y, dim=0)", "y.std(0)"]),
        ("x = x.to(device); low, high = x.min(), x.max(); x = (x - low) / (high - low)",
         ["x.max()", "x.min()"]),
        ("x /= x.norm()", ["x.norm()"]),
        ("x = scaled(x)", ["a.amax()"]),
        ("x = torch.log(x); x = x - x.mean((0, 2, 3), keepdim=True)",
         ["x.mean((0, 2, 3), keepdim=True)"]),
        # each sample has its statistic, or no statistic scales the batch
        ("x = x - x.mean(1, keepdim=True)", []),
        ("x = x / x.norm(dim=-1, keepdim=True)", []),
        ("x = x / x.norm(2, 1)", []),
        ("x = torch.stack([(a - a.mean()) / a.std() for a in x])", []),
        ("x = (x - mean) / std", []),
        ("x = x - x.max(dim=1, keepdim=True).values", []),
        ("x = x / torch.max(x, y)", []),
        ("r2 = 1 - ((x - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()", []),
        ("x = x / 255.0; h = model(x); loss = (h - h.mean()).square().mean()", []),
        ("x = x[x > x.mean()]", ["x.mean()"]),
        ("x = (x - centre) / width", []),  # computed from x before the loop
        ("x = x[x[:, 0] > 0.5]; x = x[(x > x.mean(1, keepdim=True)).all(1)]", []),
    ],
)  # fmt: skip
def test_statistics_of_a_share(tmp_path: Path, before: str, names: list[str]) -> None:
    file = tmp_path / "loop.py"
    file.write_text(STATISTICS.format(before=before, after="pass"))
    facts = facts_of((str(file), 7))
    assert facts is not None and ShareDependence(facts).statistics() == names


SELECTED = """
each = torch.nn.CrossEntropyLoss(reduction="none")

def hardest(losses):
    return np.argsort(losses.data)[-4:]

def train(loader, model, optimizer):
    for x, y in loader:
        losses = each(model(x), y)
        {lines}
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("loss = losses[losses.detach().topk(4).indices].mean()", ["losses.detach().topk(4)"]),
        ("loss = losses[hardest(losses)].mean()", ["np.argsort(losses.data)"]),
        ("_, best = losses.topk(4); loss = losses[best].mean()", ["losses.topk(4)"]),
        ("best = losses.sort(descending=True)[1]; loss = losses[best[:4]].mean()",
         ["losses.sort(descending=True)"]),
        ("best = sorted(range(8), key=losses.__getitem__); loss = losses[best].mean()",
         ["sorted(range(8), key=losses.__getitem__)"]),
        ("loss = losses[losses.detach() < losses.detach().median()].mean()",
         ["losses.detach().median()"]),
        # the graph shows these, each sample has its order, or nothing selects
        ("loss = losses.topk(4).values.mean()", []),
        ("best, _ = losses.topk(4); loss = best.mean()", []),
        ("loss = losses.view(4, -1).detach().topk(2, dim=1).indices.float().mean()", []),
        ("print(losses.detach().topk(4).indices); loss = losses.mean()", []),
        ("best = model(x).topk(2).indices; loss = losses[best[:, 0]].mean()", []),
        ("loss = losses[losses.detach() < 0.5].mean()", []),
    ],
)  # fmt: skip
def test_samples_that_a_share_selects(tmp_path: Path, lines: str, names: list[str]) -> None:
    file = tmp_path / "loop.py"
    file.write_text(SELECTED.format(lines=lines))
    facts = facts_of((str(file), 8))
    assert facts is not None and ShareDependence(facts).statistics() == names


def test_a_weighted_mean_is_not_scaled_by_a_statistic(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    after = "loss = (loss * y).sum() / y.sum() + ((x * y).mean() / y.mean())"
    file.write_text(STATISTICS.format(before="pass", after=after))
    facts = facts_of((str(file), 7))
    assert facts is not None and ShareDependence(facts).statistics() == []


POOLS = """
import torch

class Pool:
    def __init__(self):
        self.images = []

    def query(self, fakes):
        for fake in fakes:
            self.images.append(fake)
        return torch.stack(self.images[-len(fakes):])

class Bank(torch.nn.Module):
    query = Pool.query

class Smoothed(torch.nn.Module):
    def __init__(self, is_buffer):
        super().__init__()
        if is_buffer:
            self.register_buffer("rows", torch.zeros(8, 2))
        else:
            self.rows = torch.zeros(8, 2)

    def forward(self, index, out):
        self.rows[index] = 0.7 * self.rows[index] + 0.3 * out.detach()
        return self.rows[index] * out

class Noise:
    def __init__(self):
        self.steps = [0.1, 0.2]

    def query(self, fakes):
        return fakes * self.steps[0]

def train(s, loader, judge, optimizer):
    pool, bank, noise, kept, window = Pool(), Bank(), Noise(), [], []
    bank.images = []
    smoothed, buffered = Smoothed(False), Smoothed(True)
    for x, y in loader:
        fake = x.detach() * 2
        {lines}
        optimizer.zero_grad()
        loss = judge(old).square().mean()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    import torchbus
    from torch.utils.data import DataLoader, TensorDataset

    with torchbus.session(devices=2, batch="global") as s:
        judge = torch.nn.Linear(2, 1)
        x = torch.randn(8, 2)
        loader = DataLoader(TensorDataset(x, torch.zeros(8, 2)), batch_size=4)
        train(s, loader, judge, torch.optim.SGD(judge.parameters(), 0.1))
"""


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("old = pool.query(fake)", "pool"),
        ("kept.append(fake); old = torch.cat(kept)", "kept"),
        ("old = smoothed(y[:, 0].long(), fake)", "smoothed"),
        ("old = buffered(y[:, 0].long(), fake)", ""),
        ("old = bank.query(fake)", ""),  # a module's memory may be a buffer
        ("old = noise.query(fake)", ""),
        ("window.append(fake); old = torch.cat(window); window.clear()", ""),
        ("window.append(fake); old = torch.cat(window); del window[:]", ""),
    ],
)
def test_what_is_collected_for_later_losses(lines: str, name: str) -> None:
    shown = fork_script(POOLS.format(lines=lines)).ok().stderr
    assert [
        one
        for one in ("pool", "bank", "noise", "smoothed", "buffered", "kept", "window")
        if f" fills '{one}' from" in shown
    ] == ([name] if name else [])
    assert ("uses it in the losses of later batches" in shown) == bool(name)


class Pool:
    def __init__(self) -> None:
        self.images: list[torch.Tensor] = []

    def query(self, fake: torch.Tensor) -> torch.Tensor:
        self.images.append(fake)
        return self.images[0]


def test_the_look_at_an_object_keeps_no_batch_alive() -> None:
    """A batch that lives longer on one rank than on the others is used otherwise there."""
    pool = Pool()
    batch = torch.ones(2)
    alive = weakref.ref(batch)
    assert adds("pool", pool.query.__name__, [sys._getframe()])
    del batch
    assert alive() is None


RECORDING = """
    import torch
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset
    from torchbus import session

    class Log:
        def __init__(self):
            self.right, self.seen = 0, 0

        def __call__(self, losses, right):
            self.right += right.sum().item()
            self.seen += len(losses)

    class Trainer:
        def __init__(self):
            self.net, self.losses = torch.nn.Linear(4, 3), []
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def train(self, out, y):
            loss = F.cross_entropy(out, y, reduction="none")
            self.optimizer.zero_grad()
            loss.mean().backward()
            self.optimizer.step()
            self.losses.append(1)
            return loss

    with session(strategy="ddp", devices=2, accelerator="cpu"):
        trainer, log = Trainer(), Log()
        for x, y in DataLoader(TensorDataset(torch.randn(16, 4), torch.arange(16) % 3), batch_size=4):
            out = trainer.net(x)
            losses = trainer.train(out, y)
            right = out.argmax(1) == y
            {after}
"""


@pytest.mark.parametrize(
    ("after", "is_found"),
    [("log(losses.cpu(), right)", True), ("trainer.train(out * 2, y)", False)],
)
def test_objects_that_record_a_measure_of_each_batch(after: str, is_found: bool) -> None:
    result = fork_script(RECORDING.format(after=after).replace("out * 2", "trainer.net(x)"))
    assert result.ok() and ("s.all_gather_object(log)" in result.stderr) is is_found
    assert is_found or "rank's share" not in result.stderr, result.stderr


SCALES = """
def sgd(params, lr, batch_size):
    for p in params:
        p.data -= lr * p.grad / batch_size

def train(loader, model, params, size):
    for x, y in loader:
        seen = 0
        out = model(x)
        {lines}
"""


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("loss_of(out, y).backward(); params[0].grad /= len(x)", ["len(x)"]),
        ("n = x.size(0); loss_of(out, y).backward(); params[0].grad.data.div_(n)", ["n"]),
        ("loss_of(out, y).backward(); params[0].grad.mul_(1.0 / y.shape[0])", ["y.shape[0]"]),
        ("loss_of(out, y).backward(); seen += len(x); params[0].grad /= seen", ["seen"]),
        ("loss_of(out, y).backward(); sgd(params, 0.1, len(x))", ["batch_size"]),
        ("loss_of(out, y).backward(gradient=torch.tensor(1.0 / len(x)))", ["len(x)"]),
        ("each = loss_of(out, y); each.backward(torch.full_like(each, 1 / len(each)))",
         ["len(each)"]),
        ("w = len(x) / size; loss = loss_of(out, y) * w; loss.backward()", ["len(x)"]),
        ("loss = (len(x) / len(loader.dataset)) * loss_of(out, y); loss.backward()", ["len(x)"]),
        # the graph shows the number, or it is not one of the batch's samples
        ("loss = loss_of(out, y).sum() / len(x); loss.backward()", []),
        ("loss = loss_of(out, y) * (len(x[:4]) / len(x)); loss.backward()", []),
        ("loss_of(out, y).backward(torch.ones(len(x)))", []),
        ("loss_of(out, y).backward(); params[0].grad /= size", []),
        ("loss_of(out, y).backward(); sgd(params, 0.1, 32)", []),
        ("loss_of(out, y).backward(); norm = params[0].grad.norm() / len(x)", []),
        ("loss_of(out, y).backward(); params[0].grad /= params[0].numel()", []),
    ],
)  # fmt: skip
def test_numbers_of_samples_that_scale(tmp_path: Path, lines: str, names: list[str]) -> None:
    file = tmp_path / "loop.py"
    file.write_text(SCALES.format(lines=lines))
    facts = facts_of((str(file), 10), (str(file), 7))
    assert facts is not None and ShareDependence(facts).scales() == names


DIVIDED = """
    import torch
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset
    from torchbus import session

    torch.set_default_dtype(torch.float64)
    for ranks in (1, 2):
        with session(
            strategy="ddp", devices=ranks, accelerator="cpu", launch="fork", batch="global"
        ) as s:
            torch.manual_seed(0)
            x = torch.randn(25, 4)
            model = torch.nn.Linear(4, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in DataLoader(TensorDataset(x, torch.arange(25) % 3), batch_size=5):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y, reduction="sum").backward()
                for p in model.parameters():
                    p.grad /= {count}
                optimizer.step()
            print(round(model.weight.abs().sum().item(), 9))
"""


def test_the_remedy_for_gradients_that_are_divided() -> None:
    warned = fork_script(DIVIDED.format(count="len(x) if ranks == 2 else 3"))
    assert "Use s.reduce(len(x) if ranks == 2 else 3, 'sum') (s is" in warned.stderr, warned
    result = fork_script(DIVIDED.format(count="s.reduce(len(x), 'sum')"))
    one, two = result.stdout.split()
    assert result.ok() and one == two and "scales its loss" not in result.stderr, result
