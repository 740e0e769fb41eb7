"""What counts as evaluation: whole on every rank, logged once, and never trained with."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from ranks import HEAD, facts, run

from torchbus_testing.forking import fork_script

TRAIN = """
def train(net, loader, steps=99):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,), _ in zip(loader, range(steps)):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

def make(size, batch, **options):
    return DataLoader(TensorDataset(torch.arange(float(size))[:, None]), batch_size=batch, **options)

def seen(loader):
    return [int(v) for (x,) in loader for v in x]
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_loader_that_trains_is_whole_without_gradients_and_divided_again(ranks: int) -> None:
    found = facts(
        """
        net, loader = nn.Linear(1, 1), make(11, 2)
        train(net, loader)
        found["lengths"] = [len(loader)]
        for context in (torch.no_grad, torch.inference_mode):
            net.eval()
            with context():
                found["whole"] = s.all_gather_object(seen(loader))
            found["lengths"].append(len(loader))
            net.train()
            found["lengths"].append(len(loader))
            train(net, loader)
            found["lengths"].append(len(loader))
        """,
        before=TRAIN,
        ranks=ranks,
    )
    steps = -(-11 // (2 * ranks))
    assert found["whole"] == [list(range(11))] * ranks
    assert found["lengths"] == [steps, 6, steps, steps, 6, steps, steps]


@pytest.mark.parametrize("ranks", [2, 3])
def test_in_eval_mode_a_loader_is_whole_where_it_has_not_trained(ranks: int) -> None:
    """``accuracy(train_loader)``, with gradients, in another line than the loop that trains.

    A loop that goes on in eval mode, as the script forgets ``net.train()``, trains on.
    """
    found = facts(
        """
        net, loader = nn.Linear(1, 1), make(11, 2)
        found["seen"] = []
        for _ in range(2):
            train(net, loader)
            net.eval()
            outputs = []
            for (x,) in loader:
                outputs.append(net(x))
            found["seen"] += s.all_gather_object([sum(map(len, outputs)), seen(loader)])
        found["equal"] = len(set(s.all_gather_object(float(net.weight))))
        """,
        before=TRAIN,
        ranks=ranks,
    )
    assert found == {"seen": [[11, list(range(11))]] * 2 * ranks, "equal": 1}


@pytest.mark.parametrize("options", ["", 'batch="global"'])
@pytest.mark.parametrize(
    "first", ["train(net, training, 1)", "net.eval(); seen(look); net.train()"]
)
def test_one_batch_to_look_at_is_the_script_s_own(options: str, first: str) -> None:
    result = run(
        f"""
        net, training, look = nn.Linear(1, 1), make(20, 5), make(7, 5, shuffle=False)
        {first}
        found["looks"] = [len(next(iter(look))[0]) for _ in range(3)]
        train(net, training)
        train(net, look)
        found["last"] = float(net.weight)
        """,
        options=options,
        before=TRAIN,
    )
    assert dict(result.json())["looks"] == [5, 5, 5]
    assert "two loaders" not in result.stderr and "fed no backward" not in result.stderr


def test_a_loader_that_was_looked_at_trains_exactly() -> None:
    for options, batch in (("", 4), ('batch="global"', 8)):
        found = facts(
            f"""
            torch.manual_seed(3)
            net, alone = nn.Linear(1, 1), nn.Linear(1, 1)
            alone.load_state_dict(net.state_dict())
            first, second = make(16, {batch}), make(11, {batch})
            train(net, first); next(iter(second)); train(net, second); train(net, second)
            for size in (16, 11, 11):
                for x in torch.arange(float(size))[:, None].split(8):
                    g = torch.autograd.grad(alone(x).square().mean(), alone.parameters())
                    with torch.no_grad():
                        for p, d in zip(alone.parameters(), g): p -= 0.1 * d
            found["apart"] = max(float((a - b).abs() / b.abs()) for a, b in zip(net.parameters(), alone.parameters()))
            """,
            options=options,
            before=TRAIN,
        )
        assert found["apart"] < 1e-9


def test_a_step_in_eval_mode_is_refused_and_told_at_the_first_backward() -> None:
    found = facts(
        """
        import warnings
        from torchbus.errors import UsageError
        net, loader = nn.Linear(1, 1).eval(), make(12, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (x,) in loader:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                net(x).sum().backward()
            found["told"] = s.all_gather_object([str(one.message) for one in caught])
            try:
                optimizer.step()
            except UsageError as error:
                found["refused"] = str(error)
            break
        """,
        before=TRAIN,
    )
    assert all("model.train()" in told[0] for told in found["told"])
    assert (
        "the loader over TensorDataset is iterated while the model is in eval mode"
        in found["refused"]
    )


def test_gradients_of_inputs_in_eval_mode_are_nobody_s_business() -> None:
    result = run(
        """
        net, training, test = nn.Linear(1, 1), make(16, 2), make(9, 2)
        train(net, training)
        net.eval()
        found["rows"] = []
        for _ in range(3):
            rows = 0
            for (x,) in test:
                x.requires_grad_()
                net(x).square().mean().backward()
                rows += len(x.grad)
            found["rows"].append(rows)
        """,
        before=TRAIN,
    )
    assert dict(result.json())["rows"] == [9, 9, 9]
    assert "eval mode" not in result.stderr


LOGGED = """
with torch.no_grad():
    for (x,) in make(10, 4):
        s.log("sum", x.sum(), on_epoch=True, reduce="sum")
        s.log("mean", x.mean(), on_epoch=True)
        s.log("largest", x.max(), on_epoch=True, reduce="max")
"""
READ = """
import glob
for line in open(glob.glob("torchbus-logs/*/metrics-rank0.jsonl")[0]):
    found.update({name: value for name, value in json.loads(line).items() if name in ("sum", "mean", "largest")})
print(json.dumps(found))
"""


@pytest.mark.parametrize("options", ["", "shard_eval=True", 'shard_eval=True, batch="global"'])
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_an_evaluation_logs_is_over_its_samples_once(options: str, ranks: int) -> None:
    body = "train(nn.Linear(1, 1), make(12, 2))\n" + LOGGED
    line = f'with session({options + ", " if options else ""}logger="local", strategy="ddp", devices={ranks}, launch="fork") as s:'
    script = "\n".join([HEAD, TRAIN, line, indent(body, "    "), READ])
    assert fork_script(script).json() == {"sum": 45.0, "mean": 4.5, "largest": 9.0}


ROLLOUTS = """
def rollouts(net, prompts, length=6):
    with torch.no_grad():
        for prompt in prompts:
            for _ in range(length):
                prompt = net(prompt)

net, prompts = nn.Linear(2, 2), list(torch.randn(4, 3, 2))
train = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2)
"""
STEPS = """
for (x,) in train:
    net(x).square().mean().backward()
"""


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ("rollouts(net, prompts)", True),
        ("rollouts(net, s.shard(prompts))", False),
        ("rollouts(net, prompts[:1], 2)", False),
        ("net.eval(); rollouts(net, prompts); net.train()", False),
    ],
    ids=["repeated", "divided", "little", "evaluation"],
)
def test_rollouts_that_all_ranks_repeat_are_told_once(work: str, told: bool) -> None:
    stderr = run(f"{work}\n{STEPS}{work}\n{STEPS}", before=ROLLOUTS).ok().stderr
    assert stderr.count("for prompt in s.shard(prompts)") == told


GENERATES = """
import sys

def fit(stop_at, **options):
    with session(strategy="ddp", devices=2, launch="fork", checkpoint=sys.argv[1]):
        net, steps = nn.Linear(2, 2), 0
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in range(4):
            for (x,) in DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2):
                net(x).square().mean().backward()
                optimizer.step()
                steps += 1
                if steps == stop_at:
                    raise KeyError
            rollouts(net, prompts)

try:
    fit(6)
except KeyError:
    fit(0)
"""


def test_what_a_resumed_loop_generates_after_its_epochs_is_no_rollout(tmp_path: Path) -> None:
    stderr = fork_script("\n".join([HEAD, ROLLOUTS, GENERATES]), tmp_path / "kept").ok().stderr
    assert "resumes from" in stderr and "s.shard(prompts)" not in stderr, stderr


def test_what_a_training_loop_counts_is_said_once() -> None:
    """It is of this rank's share; in evaluation it is whole, and nothing is said."""
    result = run(
        """
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(12, 2), torch.arange(12) % 2), batch_size=2)
        for epoch in range(2):
            correct = total = 0
            for x, y in loader:
                out = net(x)
                nn.functional.cross_entropy(out, y).backward()
                optimizer.step()
                correct += (out.argmax(1) == y).sum().item()
                total += len(y)
            found["share"] = total
            right = 0
            with torch.no_grad():
                for x, y in loader:
                    right += (net(x).argmax(1) == y).sum().item()
        """
    ).ok()
    assert result.json()["share"] == 6
    assert result.stderr.count("from this rank's share") == 1, result.stderr
    assert "computes 'correct' and 'total' from this rank's share" in result.stderr
    assert "s.reduce(correct, 'sum'), s.reduce(total, 'sum')" in result.stderr


METHODS = """
class Trainer:
    def __init__(self):
        self.net, self.correct = nn.Linear(2, 2), 0
    def step(self, x, y):
        out = self.net(x)
        nn.functional.cross_entropy(out, y).backward()
        self.correct += (out.argmax(1) == y).sum().item()
    def fit(self, loader):
        batches = iter(loader)
        while True:
            try:
                x, y = next(batches)
            except StopIteration:
                return
            self.step(x, y)
"""


def test_counts_in_methods_of_a_while_loop_are_said_once() -> None:
    result = run(
        """
        trainer = Trainer()
        for epoch in range(2):
            trainer.fit(DataLoader(TensorDataset(torch.randn(12, 2), torch.arange(12) % 2), 2))
        """,
        before=METHODS,
    ).ok()
    assert result.stderr.count("from this rank's share") == 1, result.stderr
    assert "the loop in line" in result.stderr
    assert "s.reduce(self.correct, 'sum')" in result.stderr


WINDOWS = """
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
shown = 0.0
for (x,) in DataLoader(TensorDataset(torch.randn(12, 2)), batch_size=2):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    shown += {shown}
"""


@pytest.mark.parametrize(("shown", "warned"), [("loss.item()", 1), ("s.reduce(loss).item()", 0)])
def test_the_losses_of_a_window_are_said_to_be_of_one_rank(shown: str, warned: int) -> None:
    stderr = run(WINDOWS.format(shown=shown), "accumulate_grad_batches=3").ok().stderr
    assert stderr.count("computes 'loss' from this rank's share") == warned, stderr
    assert stderr.count("use s.reduce(loss)") == warned


BESIDE = """
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
        before=BESIDE,
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
