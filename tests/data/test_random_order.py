"""Random numbers of a training do not change the order of its data, which all ranks have in common."""

from __future__ import annotations

import pytest
from ranks import facts

UNLIKE_LENGTHS = """
        class Sequences(torch.utils.data.Dataset):
            def __len__(self):
                return 32

            def __getitem__(self, index):
                return torch.full((index % 7 + 1, 4), float(index))

        net = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1))
        pad = lambda batch: nn.utils.rnn.pad_sequence(batch, batch_first=True)
        loader = DataLoader(Sequences(), batch_size=4, shuffle=True, collate_fn=pad)
        train = lambda: torch.optim.SGD(net.parameters(), lr=1e-6)
        seen, masks = [], []
        net[1].register_forward_hook(lambda _, given, out: masks.append((out[0, 0] == 0).tolist()))

        def step(x, optimizer):
            seen.extend(x[:, 0, 0].tolist())
            optimizer.zero_grad()
            net(x).sum(1).square().mean().backward()
            optimizer.step()
"""
"""Dropout draws more numbers on the rank whose batch is longer."""
EPOCHS = {
    "one optimizer": """
        optimizer = train()
        for epoch in range(3):
            for x in loader:
                step(x, optimizer)
        """,
    "an optimizer for each epoch": """
        def one_epoch():
            optimizer = train()
            for x in loader:
                step(x, optimizer)

        for epoch in range(3):
            one_epoch()
        """,
    "an optimizer for each step": """
        for epoch in range(3):
            for x in loader:
                step(x, train())
        """,
}


@pytest.mark.parametrize("epochs", EPOCHS)
def test_dropout_on_unlike_batches_leaves_the_order_of_the_data_common(epochs: str) -> None:
    found = facts(
        UNLIKE_LENGTHS
        + EPOCHS[epochs]
        + """
        found["seen"] = s.all_gather_object(seen)
        found["masks"] = s.all_gather_object(masks)
        """
    )
    for epoch in range(3):
        shares = [seen[epoch * 16 : epoch * 16 + 16] for seen in found["seen"]]
        assert sorted(shares[0] + shares[1]) == list(range(32))
    assert all(one != other for one, other in list(zip(*found["masks"], strict=True))[1:])
