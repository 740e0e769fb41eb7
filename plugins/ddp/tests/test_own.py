"""Optimizers over tensors that belong to the samples of a rank, and over tensors that only look as
if they did.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

SCRIPTS = Path(__file__).parent / "scripts"

HEAD = (SCRIPTS / "own_head.py").read_text()


def run(body: str, strategy: str = "ddp", devices: int = 2) -> Result:
    line = f'with session(strategy="{strategy}", devices={devices}, launch="fork") as s:'
    return fork_script(
        "\n".join([HEAD, line, indent(dedent(body), "    "), "print(json.dumps(found))"])
    )


def facts(body: str, **options: Any) -> dict[str, Any]:
    result = run(body, **options)
    result.ok()
    return {**result.json(), "said": result.stderr}


CODES = """
    for epoch in range(2):
        for (x,) in DataLoader(TensorDataset(data), batch_size=4):
            code = {make}
            steps = torch.optim.SGD([code], lr=1.0)
            for _ in range(2):
                steps.zero_grad()
                net(x + code).mean().backward()
                steps.step()
            found["alike"].append(len({{tuple(one) for one in s.all_gather_object(code.flatten().tolist())}}) == 1)
            train(x)
    found["gradient"] = [code.grad[0].tolist(), (net.weight / len(data[20:])).flatten().tolist()]
    found["weights"] = torch.equal(*s.all_gather(net.weight))
"""


@pytest.mark.parametrize(
    "make",
    [
        "(0.1 * torch.randn(x.shape)).requires_grad_()",
        "nn.Parameter(x.clone())",
        "(x * 0 + s.rank).requires_grad_()",
    ],
)
def test_a_tensor_with_a_row_for_each_sample_stays_each_rank_s_own(make: str) -> None:
    found = facts(CODES.format(make=make))
    # the first noise is drawn before ranks draw numbers of their own
    assert not any(found["alike"][1:])
    assert found["weights"]
    assert ("UserWarning" in found["said"]) is found["alike"][0]


def test_its_gradient_is_that_of_the_loss_over_all_ranks() -> None:
    found = facts("""
    for (x,) in DataLoader(TensorDataset(data[:8]), batch_size=4):
        code = x.clone().requires_grad_()
        steps = torch.optim.SGD([code], lr=1.0)
        for _ in range(2):
            net(code).mean().backward()
        found["gradients"] = [code.grad.flatten().tolist(), (net.weight * 2 / 8).expand(4, 3).flatten().tolist()]
        steps.step()
    """)
    assert found["gradients"][0] == pytest.approx(found["gradients"][1], abs=1e-12)


def test_equal_tensors_with_such_rows_are_said_and_adopt_says_otherwise() -> None:
    body = """
    for (x,) in DataLoader(TensorDataset(data[:8]), batch_size=4):
        weight = torch.ones(4, 3, requires_grad=True)
        {adopt}
        steps = torch.optim.SGD([weight], lr=1.0)
        net(x * weight).mean().backward()
        steps.step()
        found["alike"] = torch.equal(*s.all_gather(weight))
    found["told"] = s.explain()
    """
    own, shared = facts(body.format(adopt="")), facts(body.format(adopt="s.adopt(weight)"))
    assert not own["alike"]
    assert (
        "SGD: a tensor of shape (4, 3), which no module owns, has a row for each sample of the batch"
        in own["said"]
    )
    assert "s.adopt(tensor) before you make its optimizer" in own["said"]
    assert "SGD steps tensors that have a row for each sample of this rank's batch" in " ".join(
        own["told"].split()
    )
    assert shared["alike"]
    assert "UserWarning" not in shared["said"]
    assert "for each sample" not in shared["told"]


def test_other_tensors_that_differ_between_ranks_are_shared_and_said() -> None:
    found = facts("""
    for (x,) in DataLoader(TensorDataset(data[:16]), batch_size=4):
        train(x)
        weight = torch.randn(3, requires_grad=True)  # in a pass, each rank draws its own
        other = torch.randn(1, requires_grad=True)
    steps = torch.optim.SGD([weight, other], lr=1.0)
    (net(x * weight) * other).mean().backward()
    steps.step()
    found["alike"] = torch.equal(*s.all_gather(weight))
    """)
    assert found["alike"]
    assert (
        "SGD: a tensor of shape (3,) (and 1 more), which no module owns and which differs between ranks, gets rank 0's values"
        in found["said"]
    )
    assert found["said"].count("which no module owns") == 1


def test_tensors_of_other_shapes_that_have_no_such_rows_are_refused() -> None:
    result = run("""
    for (x,) in DataLoader(TensorDataset(data), batch_size=4):
        train(x)
    torch.optim.SGD([torch.zeros(2 + s.rank, requires_grad=True)], lr=1.0)
    """)
    assert result.status
    assert "comes with the parameters of SGD (1 tensors), but rank 0 comes with" in result.stderr


def test_where_all_ranks_have_the_whole_batch_the_tensor_is_theirs_in_common() -> None:
    found = facts(
        """
    for (x,) in DataLoader(TensorDataset(data), batch_size=4):
        code = x.clone().requires_grad_()
        steps = torch.optim.SGD([code], lr=1.0)
        net(code).mean().backward()
        steps.step()
        found["alike"].append(torch.equal(*s.all_gather(code)))
    """,
        strategy="dp",
    )
    assert all(found["alike"])


def test_they_and_the_models_of_earlier_folds_are_let_go() -> None:
    found = facts("""
    def fold(seed):
        torch.manual_seed(seed)
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (x,) in DataLoader(TensorDataset(data), batch_size=4):
            code = x.clone().requires_grad_()
            torch.optim.SGD([code], lr=0.1)
            optimizer.zero_grad()
            net(x + code).square().mean().backward()
            optimizer.step()
        return weakref.ref(net.weight), weakref.ref(code), torch.equal(*s.all_gather(net.weight))

    folds = []
    for seed in range(4):
        folds.append(fold(seed))
        gc.collect()
    found["alike"] = [alike for _, _, alike in folds]
    found["weights"] = [weight() is None for weight, _, _ in folds]
    found["codes"] = [code() is None for _, code, _ in folds]
    """)
    assert all(found["alike"])
    assert found["weights"] == [True, True, True, False]  # the last is kept for the next backward
    assert all(found["codes"])


def test_a_weight_that_looked_like_rows_is_asked_about_at_the_second_batch() -> None:
    found = facts(
        """
        for number, (x,) in enumerate(DataLoader(TensorDataset(data), batch_size=4)):
            if number == 0:
                weight = torch.randn(4, 3, requires_grad=True)
                steps = torch.optim.SGD([weight], lr=1.0)
            steps.zero_grad()
            (x[:, :3] @ weight.t()).square().mean().backward()
            steps.step()
            train(x)
        """
    )
    assert found["said"].count("but several batches train it") == 1
