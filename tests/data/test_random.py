"""Random numbers: common before the first backward, in the order of data and in evaluation; per
rank in training.
"""

from __future__ import annotations

import pytest
from ranks import facts

from torchbus_testing.forking import fork_script

LOOP = """
        import random
        import numpy
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        train = DataLoader(TensorDataset(torch.arange(24.0).reshape(12, 2)), batch_size=3, shuffle=True)
        test = DataLoader(TensorDataset(torch.arange(8.0).reshape(4, 2)), batch_size=2, shuffle=True)
        draws = lambda: [torch.rand(1).item(), random.random(), numpy.random.rand()]

        def epoch():
            net.train()
            for (x,) in train:
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()
                noise = draws()
            return noise
"""


def test_streams() -> None:
    found = facts(
        LOOP
        + """
        found["initial"] = s.all_gather_object(draws())
        found["training"] = s.all_gather_object(epoch())
        found["between"] = s.all_gather_object(draws())
        net.eval()
        with torch.no_grad():
            for _ in test:
                pass
            found["evaluation"] = s.all_gather_object(draws())
        if s.is_main:
            draws()  # a sample that rank 0 alone draws does not upset the order of data
        epoch()
        net.eval()
        found["eval mode"] = s.all_gather_object(draws())
        net.train()
        net.eval()
        found["at once"] = s.all_gather_object(draws())
        epoch()
        net.eval()
        found["later"] = s.all_gather_object(draws())
        net.train()
        found["between again"] = s.all_gather_object(draws())
        found["again"] = s.all_gather_object(epoch())
    """
    )
    for alike in ("initial", "between", "evaluation", "eval mode", "later", "between again"):
        assert found[alike][0] == found[alike][1], alike
    assert found["at once"] == found["eval mode"]
    assert all(
        len({found[when][0][kind] for when in ("evaluation", "eval mode", "later")}) == 3
        for kind in range(3)
    )
    for apart in ("training", "again"):
        assert all(a != b for a, b in zip(*found[apart], strict=True)), apart


SHUFFLED = """
        import random
        import numpy

        class Items(torch.utils.data.Dataset):
            items = list(range(12))

            def __len__(self):
                return 12

            def __getitem__(self, i):
                return float(self.items[i])

        def gathered(batch):
            return [i for part in s.all_gather_object(batch.tolist()) for i in part]

        def orders(draw, leave=False, make=lambda data: DataLoader(data, batch_size=6, shuffle=True)):
            data, seen = Items(), []
            random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
            net = nn.Linear(1, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            loader = make(data)
            for epoch in range(3):
                net.train()
                for step, a in enumerate(loader):
                    optimizer.zero_grad()
                    net(a[:, None]).mean().backward()
                    optimizer.step()
                    seen += gathered(a)
                    if leave and step == 1:
                        break
                state = torch.get_rng_state()
                data.items = draw(data.items)
                if s.is_main:
                    torch.rand(3)  # a sample that is shown
            return [seen, state.tolist()]

        found["list"] = orders(lambda items: random.sample(items, 12))
        found["array"] = orders(lambda items: numpy.random.permutation(items).tolist())
        found["tensor"] = orders(lambda items: [items[i] for i in torch.randperm(12)])
        found["left"] = orders(lambda items: random.sample(items, 12), leave=True)

        class Tasks:
            def __len__(self):
                return 3

            def __iter__(self):
                return (random.sample(range(12), 6) for _ in range(3))

        found["lazy"] = orders(lambda items: items, make=lambda data: DataLoader(data, batch_sampler=Tasks()))
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_between_two_passes_ranks_draw_what_one_process_draws(ranks: int) -> None:
    """So a list that is shuffled between epochs is the same on all ranks."""
    options = "batch='global'"
    assert facts(SHUFFLED, options, ranks=ranks) == facts(SHUFFLED, options, ranks=1)


NESTED = """
        def task(loader, net, optimizer):
            for (x,) in loader:
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()

        data = TensorDataset(torch.arange(12.0).reshape(12, 1))
        outer, inner = DataLoader(data, batch_size=3), DataLoader(data, batch_size=3)
        net, other = nn.Linear(1, 1), nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        for epoch in range(2):
            for (x,) in outer:
                task(inner, other, second)
                found["inside"] = s.all_gather_object(torch.rand(1).item())
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()
        found["between"] = s.all_gather_object(torch.rand(1).item())
        batches = list(inner)
        for (x,) in batches * 2:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
        found["from a list"] = s.all_gather_object(torch.rand(1).item())
"""


def test_ranks_draw_apart_while_they_hold_a_batch_of_an_outer_pass_and_over_kept_batches() -> None:
    found = facts(NESTED)
    assert found["between"][0] == found["between"][1]
    assert found["inside"][0] != found["inside"][1]
    assert found["from a list"][0] != found["from a list"][1]


def test_ranks_start_from_rank_0s_numbers_even_if_the_script_did_not_seed() -> None:
    found = facts(
        """
        net = nn.Linear(4, 4)
        found["equal"] = torch.equal(*s.all_gather(net.weight))
        """,
        before="import os; torch.seed()",
    )
    assert found["equal"]


def test_workers_of_two_ranks_draw_different_numbers() -> None:
    found = facts("""
        class Noise(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, index):
                return torch.rand(1)

        loader = DataLoader(Noise(), batch_size=2, num_workers=2)
        values = torch.cat([batch.flatten() for batch in loader])
        nn.Linear(1, 1)(values[:1]).backward()
        found["values"] = s.all_gather_object(values.tolist())
    """)
    first, second = found["values"]
    assert len(set(first) | set(second)) == len(first) + len(second)


FOLDS = """
        import random
        import numpy

        def fit():
            net = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            for (x,) in DataLoader(TensorDataset(torch.arange(16.0).reshape(8, 2)), batch_size=2, shuffle=True):
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()
                drawn = [torch.rand(1).item(), random.random(), numpy.random.rand()]
            schedule.step()
            return drawn

        def split():
            return [torch.randperm(50).tolist(), random.sample(range(50), 50), numpy.random.permutation(50).tolist()]
"""


def test_between_two_training_runs_ranks_draw_alike() -> None:
    """A split, a hyperparameter and the next model are drawn while no trained model is alive."""
    found = facts(
        FOLDS
        + """
        found["training"] = []
        found["splits"] = []
        for fold in range(3):
            found["splits"].append(s.all_gather_object(split()))
            found["training"].append(s.all_gather_object(fit()))
        """
    )
    assert all(first == second for first, second in found["splits"])
    assert all(
        one != other
        for first, second in found["training"]
        for one, other in zip(first, second, strict=True)
    )
    assert len({str(first) for first, _ in found["splits"]}) == 3


DRAWS_LATE = """
        class Late(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(2, 1))
                self.is_drawn = False

            def forward(self, x):
                if not self.is_drawn:
                    self.is_drawn = True
                    self.weight.data.normal_()
                return x @ self.weight

        def fit(net, passes=1):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(passes):
                for (x,) in DataLoader(TensorDataset(torch.arange(16.0).reshape(8, 2)), batch_size=2):
                    optimizer.zero_grad()
                    net(x).mean().backward()
                    optimizer.step()
                    found["apart"] = s.all_gather_object(torch.rand(1).item())
"""


def test_backwards_in_an_evaluation_do_not_repeat_what_is_drawn_between_two_passes() -> None:
    script = """
        import random, sys, torch
        from torch.utils.data import DataLoader, TensorDataset
        from torchbus import session

        with session(strategy="ddp", devices=int(sys.argv[1]), batch="global", accelerator="cpu"):
            torch.manual_seed(0)
            random.seed(0)
            x = torch.randn(24, 4)
            net = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
            for epoch in range(4):
                print(random.sample(range(1000), 4), torch.rand(1).item())
                net.eval()
                for sample in x[:3]:  # its sensitivities
                    net.zero_grad()
                    net(sample).sum().backward()
                net.train()
                for (batch,) in DataLoader(TensorDataset(x), batch_size=8):
                    optimizer.zero_grad()
                    net(batch).square().mean().backward()
                    optimizer.step()
                net.eval()
                for (batch,) in DataLoader(TensorDataset(x), batch_size=8):
                    net(batch)
    """
    alone, two = (fork_script(script, ranks) for ranks in (1, 2))
    assert two.ok() and two.stdout == alone.stdout
    assert "But they feed backward" not in two.stderr


def test_a_model_may_draw_in_its_first_forward_while_one_trained_before_is_alive() -> None:
    found = facts(
        DRAWS_LATE
        + """
        first = nn.Linear(2, 1)
        fit(first, passes=3)
        second = Late()
        fit(second)
        found["weights"] = s.all_gather_object(second.weight.tolist())
        """
    )
    assert found["weights"][0] == found["weights"][1]
    assert found["apart"][0] != found["apart"][1]


EVALUATED = """
    import json
    import random
    import warnings
    import numpy
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from torchbus import session

    torch.set_default_dtype(torch.float64)

    def draws():
        return [torch.rand(1).item(), random.random(), numpy.random.rand()]

    def folds(seeds, late):
        # in one scope: the model of a fold is alive, and evaluated, while the next one is made
        data, found = TensorDataset(torch.arange(24.0).reshape(12, 2) / 24), []
        for fold in range(2):
            if seeds:
                torch.manual_seed(fold)
            chosen = torch.randperm(12).tolist()
            net = nn.Linear(2, 1)
            found += [chosen, net.weight.tolist(), random.sample(range(9), 3), numpy.random.rand()]
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(2):
                net.train()
                for (x,) in DataLoader(data, batch_size=6, shuffle=True):
                    optimizer.zero_grad()
                    net(x).square().mean().backward()
                    optimizer.step()
                net.eval()
                with torch.no_grad():
                    found += [draws()] if late else []
                    found += [net(x).mean().item() for (x,) in DataLoader(data, batch_size=4)]
                    found += [] if late else [draws()]
        return found

    with session(strategy="ddp" if RANKS > 1 else None, devices=RANKS, batch="global", launch="fork" if RANKS > 1 else "auto", accelerator="cpu", seed=0):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            kept = folds(False, False), folds(True, False), folds(False, True)
        print(json.dumps([kept, [str(one.message) for one in said]]))
"""


def test_runs_and_evaluations_in_one_scope_draw_what_one_process_draws() -> None:
    (alone, _), *several = [
        fork_script(EVALUATED.replace("RANKS", ranks)).json() for ranks in ("1", "2", "3")
    ]
    for found, said in several:
        for ours, theirs in zip(found, alone, strict=True):
            for one, expected in zip(ours, theirs, strict=True):
                assert one == (pytest.approx(expected) if type(expected) is float else expected)
        assert not [text for text in said if "still existed, in eval mode" in text]


def test_a_model_made_from_numbers_of_an_evaluation_within_a_pass_is_warned_of() -> None:
    script = """
        import torch
        from torch.utils.data import DataLoader
        from torchbus import session

        def fit(model, x):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(x).square().mean().backward()
            optimizer.step()
            return optimizer

        with session(strategy="ddp", devices=2, accelerator="cpu"):
            first = torch.nn.Linear(2, 1)
            for step, x in enumerate(DataLoader(torch.ones(8, 2), batch_size=2)):
                one = fit(first, x)
                if step == 1:
                    first.eval()
                    second = torch.nn.Linear(2, 1)
                    two = fit(second, x)
                    first.train()
    """
    assert (
        "while an earlier trained model still existed, in eval mode" in fork_script(script).stderr
    )
