"""A script that makes its batches itself is told what divides them, in the words of the way it was
started.
"""

from __future__ import annotations

import sys

import pytest
import ranks

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import run, write_script

SLICES = """
import torch, torchbus
from torch import nn
torch.manual_seed(0)
data, flat = torch.randn(12, 3), {flat}
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def main():
    session = torchbus.current()
    print("world", None if session is None else session.world_size)
    for step in range(6):
        x = data[2 * step : 2 * step + 2]
        x = session.shard(x) if {shard} else x
        out = nn.functional.linear(x, model.weight) if flat else model(x)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
"""
BLOCK = """
with torchbus.session(strategy="ddp", devices=2, launch="fork"):
    main()
print(torchbus.current())
"""


def words(text: str) -> str:
    return " ".join(text.split())


def test_in_a_block() -> None:
    ended = fork_script(SLICES.format(flat=False, shard=False) + BLOCK).ok()
    assert "divide them with s.shard(...), or draw them" in words(ended.stderr)
    assert "strategy='dp' divides each batch in the model's forward" in words(ended.stderr)
    assert "world 2" in ended.stdout and ended.stdout.splitlines()[-1] == "None"
    divided = fork_script(SLICES.format(flat=False, shard=True) + BLOCK).ok()
    assert "computed the same thing" not in divided.stderr
    without_forward = fork_script(SLICES.format(flat=True, shard=False) + BLOCK).ok()
    assert (
        "divide them with s.shard(...)" in words(without_forward.stderr)
        and "strategy='dp'" not in without_forward.stderr
    )


@pytest.mark.slow
def test_under_the_command(tmp_path) -> None:
    path = write_script(tmp_path, SLICES.format(flat=False, shard=False) + "\nmain()\n")
    ended = run(
        [sys.executable, "-m", "torchbus", "run", "--strategy", "ddp", "--devices", "2", str(path)],
        cwd=tmp_path,
    ).ok()
    assert "world 2" in ended.stdout
    assert "divide them with torchbus.current().shard(...)" in words(ended.stderr)
    assert "--strategy dp divides each batch" in words(ended.stderr)


def test_the_cause_is_a_loader_that_is_not_divided() -> None:
    """Not an iterator that was made before the block, although one is alive."""
    loop = """
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for (x,) in loader:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
    """
    loader = "loader = DataLoader(TensorDataset(torch.arange(36.0).reshape(12, 3)), batch_size=2)"
    left_alone = ranks.run(loop, "replace_sampler=False", loader).ok().stderr
    assert "This pass is not divided: the loader over TensorDataset. s.explain()" in words(
        left_alone
    )
    older = ranks.run(loop, "", f"{loader}; loader = iter(loader)").ok().stderr
    assert "An iterator of a DataLoader was made before the block" in words(older)


EPISODES = """
        policy = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
        for _ in range(8):
            state, logs = torch.zeros(4), []
            for _ in range(4):
                actions = torch.distributions.Categorical(logits=policy(state))
                action = actions.sample()
                logs.append(actions.log_prob(action))
                state = state + torch.randn(4) * (2 * action - 1)
            optimizer.zero_grad()
            (-torch.stack(logs) * torch.arange(4.0)).sum().backward()
            optimizer.step()
"""


def test_episodes_that_begin_in_the_same_state_are_not_the_same() -> None:
    assert "computed the same thing" not in ranks.run(EPISODES).ok().stderr


def test_gradients_by_hand_and_rewards_are_told_what_weighs_them() -> None:
    reward = """
        for step in range(4):
            (nn.Linear(3, 1)(torch.ones(2, 3)).mean() * (0.5 + s.rank)).backward()
    """
    told = words(ranks.run(reward).stderr)
    assert "a reward does, must be a tensor: torch.tensor([value])" in told
    by_hand = """
        net = nn.Linear(3, 1)
        for x in DataLoader(torch.randn(12, 3), batch_size=2):
            (g,) = torch.autograd.grad(net(x).mean(), [net.weight])
            net.weight.data -= g
    """
    told = words(ranks.run(by_hand).stderr)
    assert (
        "or assign them to p.grad before optimizer.step(), which averages them by samples" in told
    )


def test_batches_in_a_list_are_shuffled_alike() -> None:
    loop = """
        net, batches = nn.Linear(3, 1), list(DataLoader(torch.randn(40, 3), batch_size=4))
        import random
        for epoch in range(4):
            {}.shuffle(batches)
            for x in batches:
                net(x).mean().backward()
    """
    told = words(ranks.run(loop.format("random")).stderr)
    assert "seed what draws the order, as in random.Random(epoch).shuffle(batches)" in told
    assert ranks.run(loop.format("random.Random(epoch)")).ok()


def test_a_loader_out_of_order_is_read_in_order() -> None:
    """Its first batch takes longest, in a worker of its own."""
    found = ranks.facts(
        """
        import time
        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 12

            def __getitem__(self, index):
                time.sleep(0.3 * (index < 4))
                return torch.full((3,), float(index))

        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(Slow(), batch_size=2, num_workers=2, in_order=False)
        seen = []
        for x in loader:
            net(x).mean().backward()
            seen += torch.cat(list(s.all_gather(x[:, 0]))).tolist()
        found["seen"], found["after"] = seen, loader.in_order
        """
    )
    assert found["seen"] == list(range(12)) and found["after"] is False
