"""Norms of gradients by layer are those of one process, whoever holds the gradients."""

from __future__ import annotations

import pytest
from ranks import facts

SLOW = pytest.mark.slow
OTHERS = ("pipeline", "deepspeed", "deepspeed_stage_2")


@pytest.mark.parametrize(
    "strategy",
    ["ddp", "fsdp", "ddp_sharded", *(pytest.param(one, marks=SLOW) for one in OTHERS)],
)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=SLOW)])
def test_norms_of_one_process(ranks: int, strategy: str) -> None:
    found = facts(
        f"""
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (x,) in DataLoader(data, batch_size={2 * ranks if strategy == "pipeline" else 2}):
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        found["logged"] = logged
    """,
        "logger=Logger(), log_grad_norms='layer', log_every_n_steps=1, accumulate_grad_batches=2, gradient_clip_val=0.5",
        before=f"""
        import copy
        from torchbus.bus.base import hookimpl
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        data = TensorDataset(torch.randn({ranks * 12}, 4))
        logged = []

        class Logger:
            @hookimpl(optionalhook=True)
            def metrics_ready(self, metrics):
                logged.append([metrics.get(f"grad_norm/net.{{layer}}") for layer in (0, 2)])

        plain, right = copy.deepcopy(net), []
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        for (x,) in DataLoader(data, batch_size={4 * ranks}):
            plain(x).square().mean().backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            right.append([nn.utils.get_total_norm([one.grad for one in plain[layer].parameters()]).item() for layer in (0, 2)])
            optimizer.step()
            optimizer.zero_grad()
        found["right"] = right
        del plain, optimizer
        """,
        ranks=ranks,
        strategy=strategy,
    )
    assert len(found["right"]) == len(found["logged"]) == 3
    for right, logged in zip(found["right"], found["logged"], strict=True):
        # DeepSpeed reduces in float32
        assert logged == pytest.approx(right, rel=1e-5 if "deepspeed" in strategy else 1e-9)
