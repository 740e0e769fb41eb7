"""Random numbers: common before the first backward, in the order of data and in evaluation; per
rank in training.
"""

from __future__ import annotations

from ranks import facts

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
"""


def test_streams() -> None:
    found = facts(
        LOOP
        + """
        found["initial"] = s.all_gather_object(draws())
        epoch()
        found["training"] = s.all_gather_object(draws())
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
        found["again"] = s.all_gather_object(draws())
    """
    )
    for alike in ("initial", "evaluation", "eval mode", "later"):
        assert found[alike][0] == found[alike][1], alike
    assert found["at once"] == found["eval mode"]
    assert all(
        len({found[when][0][kind] for when in ("evaluation", "eval mode", "later")}) == 3
        for kind in range(3)
    )
    for apart in ("training", "again"):
        assert all(a != b for a, b in zip(*found[apart], strict=True)), apart


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
            schedule.step()
            return [torch.rand(1).item(), random.random(), numpy.random.rand()]

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


def test_a_run_that_begins_while_an_evaluated_model_is_alive_is_told() -> None:
    """Its split is the same on all ranks, though not what one process draws."""
    found = facts(
        DRAWS_LATE
        + """
        import warnings
        found["splits"] = []
        for fold in range(2):
            found["splits"].append(s.all_gather_object(torch.randperm(50).tolist()))
            net = nn.Linear(2, 1)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                fit(net)
            net.eval()
        found["said"] = [str(one.message) for one in said]
        """
    )
    assert all(first == second for first, second in found["splits"])
    assert [text for text in found["said"] if "was alive and in eval mode" in text]
