"""What a loop prints of its loss is that of all ranks, also behind a scaler, a division, a sum."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SCRIPT = """
    import json
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from torchbus import session

    def printed(s, step):
        # what one epoch prints, with a ragged last batch
        torch.manual_seed(0)
        net = s.adopt(torch.nn.Linear(3, 1))
        learned = [s.adopt(torch.nn.Parameter(torch.zeros(2)))] if step is of_learned_weights else []
        optimizer = torch.optim.SGD([*net.parameters(), *learned], lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        found = []
        for x, y in DataLoader(TensorDataset(torch.randn(20, 3), torch.randn(20, 1)), batch_size=6 // RANKS):
            optimizer.zero_grad()
            error = net(x) - y
            found.append([one.item() for one in step(scaler, error.square().mean(), error.abs().mean(), *learned)])
            optimizer.step()
        return found

    def plain(scaler, a, b):
        a.backward()
        return [a]

    def of_scaler(scaler, a, b):
        scaler.scale(a).backward()
        return [a]

    def divided(scaler, a, b):
        (a / 4).backward()
        return [a]

    def scaled_and_divided(scaler, a, b):
        a = a / 4
        scaler.scale(a).backward()
        return [a]

    def of_sum(scaler, a, b):
        total = a + 0.1 * b
        scaler.scale(total / 2).backward()
        return [a, b, total]

    def of_dict(scaler, a, b):
        losses = {"a": a, "b": b, "both": a - b}
        sum(losses.values()).backward()
        return list(losses.values())

    def of_stack(scaler, a, b):
        losses = [a, b]
        torch.stack(losses).sum().backward()
        return losses

    def in_a_helper(scaler, a, b):
        def update(loss):
            scaler.scale(loss).backward()
        total = a + b
        update(total)
        return [a, b, total]

    def of_a_factor_of_its_own(scaler, a, b):
        (a * torch.tensor(0.25)).backward()
        return [a]

    def of_learned_weights(scaler, a, b, logs):
        loss = torch.exp(-logs[0]) * a + logs[0] + b / (2 * logs[1].exp()) + logs.sum()
        loss.backward()
        return [a, b, loss]

    def kept(scaler, a, b):
        scaler.scale(a).backward(retain_graph=True)
        return [a * 0]

    def view(scaler, a, b):
        two = torch.stack([a, b])
        first, second = two.unbind()
        (first + second).backward()
        return [first * 0]

    STEPS = [plain, of_scaler, divided, scaled_and_divided, of_sum, of_dict, of_stack, in_a_helper, of_a_factor_of_its_own, kept, view]
    STEPS += [of_learned_weights] if "STRATEGY" == "ddp" else []  # used outside of a forward
    with session(strategy="STRATEGY" if RANKS > 1 else None, devices=RANKS, launch="fork" if RANKS > 1 else "auto", accelerator="cpu") as s:
        print(json.dumps({step.__name__: printed(s, step) for step in STEPS}))
"""


def printed(ranks: int, strategy: str = "ddp") -> dict[str, Any]:
    result = fork_script(SCRIPT.replace("RANKS", str(ranks)).replace("STRATEGY", strategy))
    assert result.ok(), result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return printed(1)


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "ddp"), (3, "ddp"), (2, "fsdp"), (3, "fsdp")])
def test_printed_as_in_one_process(ranks: int, strategy: str, alone: dict[str, Any]) -> None:
    found = printed(ranks, strategy)
    for name, rows in found.items():
        for row, expected in zip(rows, alone[name], strict=True):
            assert row == pytest.approx(expected, rel=1e-4, abs=1e-6), name


@pytest.mark.slow
def test_printed_of_two_pipelines() -> None:
    script = SCRIPT.replace(
        "Linear(3, 1)", "Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))"
    )
    script = script.replace("scaler.scale(", "(").replace("kept, view]", "kept]")
    two = script.replace("6 // RANKS", "3").replace(
        'accelerator="cpu"', 'stages=2, accelerator="cpu"'
    )
    pipelines = fork_script(two.replace("RANKS", "4").replace("STRATEGY", "pipeline")).json()
    for name, rows in fork_script(script.replace("RANKS", "1")).json().items():
        for row, expected in zip(pipelines[name], rows, strict=True):
            assert row == pytest.approx(expected, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_with_other_terms_keep_their_own(strategy: str) -> None:
    """Values are matched by their place in the graph, which must be the same on all ranks."""
    script = """
        import torch
        from torchbus import session
        with session(strategy="STRATEGY", devices=2, launch="fork") as s:
            net = s.adopt(torch.nn.Linear(1, 1, bias=False))
            torch.nn.init.ones_(net.weight)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
            w = net(torch.ones(1, 1))
            a, b = (w * (s.rank + 1)).mean(), (w * 10).mean()
            total = a + b if s.rank == 0 else b * 2 + a
            total.backward()
            print(s.all_gather_object((a.item(), b.item(), total.item())))
    """
    result = fork_script(script.replace("STRATEGY", strategy))
    assert result.ok() and result.stdout == "[(1.0, 10.0, 16.5), (2.0, 10.0, 16.5)]\n"
