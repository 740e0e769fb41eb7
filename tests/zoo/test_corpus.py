"""What scripts from public repositories taught (docs/corpus.md) that is no loop of its own."""

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


@pytest.mark.parametrize(
    "forward",
    [
        "torch.sparse.mm(torch.eye(3).to_sparse(), sparse(torch.eye(3).to_sparse()))",
        "sparse(torch.eye(3).to_sparse_csr())",
        "net(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)).values()",
        "torch.func.vmap(lambda x: torch.func.functional_call(net, dict(net.named_parameters()), (x,)))(torch.ones(4, 3))",
        "(copy.deepcopy(net).to('meta')(torch.ones(2, 3, device='meta')), net(torch.ones(2, 3)))[1]",
    ],
    ids=["sparse", "csr", "jagged", "vmap", "meta"],
)
def test_inputs_whose_numbers_can_t_be_read_as_rows(forward: str) -> None:
    """The look at whether all ranks compute the same thing must not stop a loop."""
    found = facts(
        NET
        + f"""
        import copy
        class Graph(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3, 2))

            def forward(self, adjacency):
                return adjacency @ self.weight

        sparse = Graph()
        for _ in range(3):
            optimizer.zero_grad()
            ({forward}).mean().backward()
            optimizer.step()
        found["alike"] = torch.equal(*s.all_gather(net.weight))
        """
    )
    assert found["alike"]


@pytest.mark.parametrize(
    "part", ["torch.utils.data.Subset(whole, indices)", "Split(whole, indices)"]
)
def test_parts_of_a_data_set_that_differ_between_ranks_are_refused(part: str) -> None:
    """A script that chooses clients, folds or splits by a rank's own random numbers: the order is
    the same, the samples are not. Between two passes, ranks draw the same.
    """
    result = run(
        NET
        + f"""
        class Split(torch.utils.data.Dataset):
            def __init__(self, dataset, idxs):
                self.dataset, self.idxs = dataset, list(idxs)

            def __len__(self):
                return len(self.idxs)

            def __getitem__(self, item):
                return self.dataset[self.idxs[item]]

        whole = TensorDataset(torch.arange(60.0).reshape(20, 3) / 60)
        indices = list(range(8))
        train({part})
        indices = torch.randperm(20)[:8]
        train({part})
        drawn = []
        train({part}, then=lambda: drawn.append(torch.randperm(20)[:8]))
        print("drawn alike between passes")
        indices = drawn[-1]
        train({part})
        """
    )
    assert result.status and "drawn alike between passes" in result.stdout
    assert "the ranks' data sets do not hold the same samples" in result.stderr
    assert "random numbers drawn while a model trains" in result.stderr


def test_statistics_of_the_data_before_training_are_no_part_of_the_first_step() -> None:
    result = run(
        NET
        + """
        whole = TensorDataset(torch.arange(63.0).reshape(21, 3) / 63)
        mean = torch.cat([x for (x,) in DataLoader(whole)]).mean()
        train(whole, size=4)
        """
    )
    assert result.ok()
    assert "fed no backward" in result.stderr  # what was computed from it is one rank's
    assert "whose shares have different" not in result.stderr


def test_a_model_that_only_evaluates_is_asked_where_those_that_trained_are_gone() -> None:
    """Federated averaging: copies are trained and forgotten, the average of their weights is
    evaluated.
    """
    found = facts(
        """
        import copy
        whole = TensorDataset(torch.arange(24.0).reshape(8, 3) / 24)
        average = nn.Linear(3, 1)

        def local():
            model = copy.deepcopy(average)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for (x,) in DataLoader(whole, batch_size=2):
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
            return copy.deepcopy(model.state_dict())

        for _ in range(2):
            average.train()
            average.load_state_dict(local())
            average.eval()
            found.setdefault("seen", []).append(sum(len(x) for (x,) in DataLoader(whole, batch_size=2)))
        """
    )
    assert found["seen"] == [8, 8]


def test_a_loader_begun_anew_for_each_batch_is_not_said_to_feed_nothing() -> None:
    """Semi-supervised training: few labelled samples, one batch of them, beside many others."""
    result = run(
        NET
        + """
        labelled = DataLoader(TensorDataset(torch.arange(12.0).reshape(4, 3) / 12), batch_size=2)
        first = iter(labelled)
        others = iter(DataLoader(TensorDataset(torch.arange(60.0).reshape(20, 3) / 60), batch_size=2))
        for _ in range(5):
            try:
                (y,) = next(first)
            except StopIteration:
                first = iter(labelled)
                (y,) = next(first)
            (x,) = next(others)
            optimizer.zero_grad()
            net(torch.cat([x, y])).mean().backward()
            optimizer.step()
        """
    )
    result.ok()
    assert "fed no backward" not in result.stderr


def test_a_loop_that_skips_the_smaller_batch_is_told_of_drop_last() -> None:
    result = run(
        NET
        + """
        for _ in range(2):
            for (x,) in DataLoader(TensorDataset(torch.arange(45.0).reshape(15, 3)), batch_size=4):
                if len(x) != 4:
                    continue
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()
        """
    )
    assert result.status
    assert "drop_last=True" in result.stderr


def test_a_loss_between_batches_of_zipped_loaders_whose_shares_differ_is_told() -> None:
    result = run(
        NET
        + """
        one, other = (DataLoader(TensorDataset(torch.arange(3.0 * size).reshape(size, 3) / 60), batch_size=4) for size in (16, 15))
        for (x,), (y,) in zip(one, other):
            optimizer.zero_grad()
            (net(x).mean() - net(y).mean()).square().backward()
            optimizer.step()
        """
    )
    assert (
        result.ok()
        and "one step used batches of two loaders, whose shares have different" in result.stderr
    )
