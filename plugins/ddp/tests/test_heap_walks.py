"""How often a session looks through all objects that the garbage collector knows."""

from __future__ import annotations

import pytest
from ranks import facts


@pytest.mark.parametrize(
    ("strategy", "entering", "in_all"), [("ddp", 1, 5), ("dp", 1, 5), ("fsdp", 2, 6)]
)
def test_the_heap_is_walked_a_few_times_and_not_in_steady_steps(
    strategy: str, entering: int, in_all: int
) -> None:
    """Each is a walk over some 300,000 objects, and in a forked rank it copies their memory."""
    found = facts(
        """
        found["entering"] = len(walks)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        counts = []
        for epoch in range(2):
            for (x,) in DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=2):
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
                counts.append(len(walks))
        found["first"], found["last"] = counts[0], counts[-1]
        """,
        before="""
        import gc
        walks, walk = [], gc.get_objects
        gc.get_objects = lambda *given: walks.append(given) or walk(*given)
        """,
        strategy=strategy,
    )
    assert found["entering"] <= entering
    assert found["first"] <= in_all
    assert found["last"] == found["first"]
