"""Random generators of the script's own: ranks draw apart while a divided batch is in use, alike
between passes, in evaluation and for the order of the data.
"""

from __future__ import annotations

import pytest
from ranks import facts

HOLDERS = """
        import functools
        import random
        import numpy

        def flat(values):
            return [one for part in s.all_gather_object(values) for one in part]

        class Noisy(torch.utils.data.Dataset):
            def __init__(self, draw):
                self.draw = draw

            def __len__(self):
                return 12

            def __getitem__(self, i):
                return torch.tensor([float(i)]), self.draw()

        class Jitter:
            def __init__(self):
                self.rng = random.Random(0)

            def __call__(self):
                return self.rng.random()

        class Both:
            def __init__(self, *transforms):
                self.transforms = transforms

            def __call__(self):
                return self.transforms[0]()

        class Held(Noisy):
            def __init__(self):
                super().__init__(lambda: self.rng.random())
                self.rng = numpy.random.RandomState(0)

        def drawing(rng):
            return lambda: rng.random()

        def uniform(rng):
            return rng.uniform(0, 1)

        net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def epoch(loader, drawn, draw=None):
            for x, noise in loader:
                drawn += noise.tolist() if draw is None else [draw() for _ in x]
                optimizer.zero_grad()
                net(x).mean().backward()
                optimizer.step()

        def drawn_in_two_epochs(data, draw=None, between=lambda: 0, **options):
            drawn, common = [], []
            loader = DataLoader(data, batch_size=3, shuffle=True, **options)
            for _ in range(2):
                epoch(loader, drawn, draw)
                common += [s.all_gather_object(between())]
            return [len(set(flat(drawn))), common]
"""


def test_ranks_draw_apart_for_different_samples_whoever_holds_the_generator() -> None:
    found = facts(
        HOLDERS
        + """
        numbers, mine = numpy.random.default_rng(0), torch.Generator().manual_seed(0)
        plain = Noisy(lambda: 0.0)
        subset = torch.utils.data.Subset(torch.utils.data.ConcatDataset([Held()]), range(12))
        inside = lambda: torch.rand(1, generator=mine).item()
        net.noise = torch.Generator().manual_seed(1)
        found = {
            "data set": drawn_in_two_epochs(Held()),
            "part of a data set": drawn_in_two_epochs(subset),
            "transform of transforms": drawn_in_two_epochs(Noisy(Both(Jitter()))),
            "closure": drawn_in_two_epochs(Noisy(drawing(numpy.random.default_rng(1)))),
            "partial": drawn_in_two_epochs(Noisy(functools.partial(uniform, random.Random(1)))),
            "loop": drawn_in_two_epochs(plain, inside, lambda: torch.rand(1, generator=mine).item()),
            "variable": drawn_in_two_epochs(plain, numbers.random, numbers.random),
            "model": drawn_in_two_epochs(plain, lambda: torch.rand(1, generator=net.noise).item()),
            "workers": drawn_in_two_epochs(Held(), num_workers=1),
        }
        """
    )
    # workers are forked from where the data set stands, in each epoch
    assert {name: count for name, (count, _) in found.items()} == dict.fromkeys(found, 24) | {
        "workers": 12
    }
    for _, between in found.values():
        assert all(one == other for one, other in between), found


ORDER = """
        import random
        import numpy

        def gathered(batch):
            return [i for part in s.all_gather_object(batch.tolist()) for i in part]

        class Lazy:
            def __init__(self, rng):
                self.rng = rng

            def __len__(self):
                return 12

            def __iter__(self):
                return (self.rng.randrange(12) for _ in range(12))

        def orders(rng, make):
            net = nn.Linear(1, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            data = torch.arange(12.0)
            loader, seen = make(data), []
            for epoch in range(2):
                for step, x in enumerate(loader):
                    optimizer.zero_grad()
                    net(x[:, None]).mean().backward()
                    optimizer.step()
                    seen += gathered(x)
                    if epoch == 0 and step == 1:
                        net.eval()
                        seen.append(s.all_gather_object(rng()))
                        net.train()
                seen.append(s.all_gather_object(rng()))
            return seen

        g, r = torch.Generator().manual_seed(0), random.Random(0)
        draw = lambda: torch.rand(1, generator=g).item()
        found["order"] = orders(draw, lambda data: DataLoader(data, 6, shuffle=True, generator=g))
        found["lazy"] = orders(r.random, lambda data: DataLoader(data, 6, sampler=Lazy(r)))
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_the_order_also_draws_from_gives_the_order_of_one_process(ranks: int) -> None:
    """Numbers between passes and in evaluation are those of one process too."""
    alone = facts(ORDER, "batch='global'", ranks=1)
    several = facts(ORDER, "batch='global'", ranks=ranks)
    assert several == {name: spread(seen, ranks) for name, seen in alone.items()}


def spread(seen: list[object], ranks: int) -> list[object]:
    return [one * ranks if isinstance(one, list) else one for one in seen]


def test_a_model_under_dp_draws_from_its_generator_for_each_row() -> None:
    found = facts(
        """
        class Noisy(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.rng = nn.Linear(1, 1), torch.Generator().manual_seed(0)

            def forward(self, x):
                return self.scale(x) + torch.rand(len(x), 1, generator=self.rng)

        net = Noisy()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        rows = []
        for step in range(3):
            out = net(torch.zeros(8, 1))
            out.mean().backward()
            rows += out.flatten().tolist() if step else []
        found["different"] = len(set(rows))
        found["after"] = s.all_gather_object(torch.rand(1, generator=net.rng).item())
        """,
        strategy="dp",
    )
    assert found["different"] == 16
    assert found["after"][0] == found["after"][1]
