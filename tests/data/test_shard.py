"""``s.shard``, ``s.reduce``, ``s.all_gather``, ``shard_eval``: exact over the whole set, no
padding.
"""

from __future__ import annotations

import pytest
from ranks import facts


def test_batches_made_by_the_script_give_the_whole_batch_s_gradient() -> None:
    found = facts("""
        data = torch.randn(37, 3)
        net, alone = nn.Linear(3, 1), nn.Linear(3, 1)
        alone.load_state_dict(net.state_dict())
        for start in range(0, 37, 10):
            x, y = s.shard((data[start : start + 10], data[start : start + 10].sum(1)))
            net.zero_grad()
            (net(x).squeeze(1) - y).square().mean().backward()
            whole = data[start : start + 10]
            grads = torch.autograd.grad((alone(whole).squeeze(1) - whole.sum(1)).square().mean(), alone.parameters())
            found[str(start)] = max((p.grad - g).abs().max().item() for p, g in zip(net.parameters(), grads))
            found[f"rows {start}"] = s.all_gather_object(len(x))
    """)
    assert all(found[str(start)] < 1e-14 for start in range(0, 37, 10))
    assert found["rows 0"] == [5, 5]
    assert found["rows 30"] == [4, 3]


def test_items_are_dealt_out_and_none_twice() -> None:
    found = facts(
        """
        from torchbus.errors import UsageError
        share = s.shard(range(7))
        found["dealt"] = s.all_gather_object([len(share), *share])
        with torch.no_grad():
            found["evaluated"] = s.all_gather_object([len(share), *share])
        found["weight afterwards"] = s.all_gather_object(s._context.share.weight)
        net = nn.Linear(1, 1)

        def train(items):
            taken = []
            for item in items:
                net(torch.tensor([float(item)])).backward()
                taken.append([item, s._context.share.weight])
            return taken

        repeated = s.shard(range(7), repeat=True)
        found["trained"] = s.all_gather_object([len(repeated), *train(repeated)])
        found["even"] = s.all_gather_object(train(s.shard(range(6))))
        try:
            train(share)
        except UsageError as error:
            found["refused"] = s.all_gather_object(str(error))
    """,
        ranks=3,
    )
    assert found["dealt"] == found["evaluated"] == [[3, 0, 3, 6], [2, 1, 4], [2, 2, 5]]
    assert found["weight afterwards"] == [1.0, 1.0, 1.0]
    assert found["trained"] == [
        [3, [0, 1.0], [3, 1.0], [6, 3.0]],
        [3, [1, 1.0], [4, 1.0], [4, 0.0]],
        [3, [2, 1.0], [5, 1.0], [5, 0.0]],
    ]
    assert found["even"] == [[[0, 1.0], [3, 1.0]], [[1, 1.0], [4, 1.0]], [[2, 1.0], [5, 1.0]]]
    assert all(
        "the last 1 item(s) are not enough for 3 ranks" in text and "repeat=True" in text
        for text in found["refused"]
    )


def test_batches_of_every_kind_keep_their_classes() -> None:
    found = facts("""
        import collections
        from torchbus.errors import UsageError
        Pair = collections.namedtuple("Pair", "x y")
        class Encoding(collections.UserDict):
            def __init__(self, data, note):
                super().__init__(data)
                self.note = note
        rows, more = torch.arange(5.0), torch.arange(10.0).view(5, 2)
        x, y = s.shard(rows, more)
        found["several"] = s.all_gather_object([x.tolist(), y.tolist()])
        given = [Pair(rows, more), collections.defaultdict(list, x=rows), collections.OrderedDict(x=rows), Encoding({"x": rows}, "n"),
                 {"a": [rows, (more,)]}, [rows, more]]
        parts = [s.shard(one) for one in given]
        found["classes"] = [type(part) is type(one) for one, part in zip(given, parts)]
        found["kept"] = [parts[1].default_factory is list, parts[3].note, len(parts[3]["x"]), len(given[3]["x"]), len(parts[0].x)]
        with torch.no_grad():
            found["none"] = s.all_gather_object([s.shard(rows[:1]).tolist(), s.shard(rows[:3]).tolist(), s.shard(rows[:1], repeat=True).tolist()])
        found["trains"] = s.all_gather_object([s.shard(rows[:1]).tolist(), s._context.share.weight])

        pairs = [(row, number) for number, row in enumerate(rows)]
        found["pairs"] = s.all_gather_object([number for _, number in s.shard(pairs)])

        def refused(*values):
            try:
                return s.shard(*values) and ""
            except UsageError as error:
                return str(error)

        found["refused"] = [refused({"x": rows, "names": ["a", "b"]}), refused(rows, ["a"]), refused({"a": 1}), refused(torch.tensor(1.0)),
                            refused(rows, rows[:2]), refused(3)]
    """)
    assert found["several"] == [[[0, 1, 2], [[0, 1], [2, 3], [4, 5]]], [[3, 4], [[6, 7], [8, 9]]]]
    assert found["classes"] == [True] * 6 and found["kept"] == [True, "n", 3, 5, 3]
    assert found["none"] == [[[0], [0, 1], [0]], [[], [2], [0]]]
    assert found["pairs"] == [[0, 2, 4], [1, 3]]
    assert found["trains"] == [[[0], 2.0], [[0], 0.0]]
    expected = [
        "a dict with a str",
        "a tuple with a str",
        "a dict with an int",
        "has no dimension",
        "must have the same number",
        "s.shard(int)",
    ]
    assert all(words in told for words, told in zip(expected, found["refused"], strict=True)), (
        found["refused"]
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_shard_eval_sees_each_sample_once(ranks: int) -> None:
    found = facts(
        """
        loader = DataLoader(TensorDataset(torch.arange(11.0)), batch_size=2)
        seen, total = [], torch.zeros(())
        with torch.no_grad():
            for (x,) in loader:
                seen += x.tolist()
                total += x.sum()
        found["seen"] = sorted(sum(s.all_gather_object(seen), []))
        found["total"] = s.reduce(total, "sum").item()
        found["gathered"] = sorted(torch.cat(s.all_gather(torch.tensor(seen))).tolist())
    """,
        options="shard_eval=True",
        ranks=ranks,
    )
    assert found["seen"] == found["gathered"] == [float(value) for value in range(11)]
    assert found["total"] == 55.0


def test_an_evaluation_loader_is_not_divided_and_a_divided_one_without_backward_is_said() -> None:
    found = facts("""
        import warnings
        loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=2)
        with torch.no_grad():
            found["whole"] = [sum(len(x) for (x,) in loader), len(loader)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found["share"] = [sum(len(x) for (x,) in loader), len(loader)]
        found["said"] = " ".join(str(warning.message) for warning in caught)
    """)
    assert found["whole"] == [10, 5]
    assert found["share"] == [6, 3]
    assert "fed no backward" in found["said"]


def test_batch_global_divides_the_script_s_own_batch() -> None:
    found = facts(
        """
        loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=4)
        seen = [x.tolist() for (x,) in loader if nn.Linear(1, 1)(x[:1]).sum().backward() is None]
        found["seen"] = s.all_gather_object(seen)
        found["length"] = len(loader)
    """,
        options='batch="global"',
    )
    assert found["seen"] == [
        [[0.0, 1.0], [4.0, 5.0], [8.0, 9.0]],
        [[2.0, 3.0], [6.0, 7.0], [6.0, 7.0]],
    ]
    assert found["length"] == 3


def test_a_stream_is_divided_under_batch_global_too() -> None:
    found = facts(
        """
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(torch.arange(10.0))

        loader = DataLoader(Stream(), batch_size=4)
        seen = [x.tolist() for x in loader if nn.Linear(1, 1)(x[:1]).sum().backward() is None]
        found["seen"] = s.all_gather_object(seen)
    """,
        options='batch="global"',
    )
    assert found["seen"] == [
        [[0.0, 1.0], [4.0, 5.0], [8.0, 9.0]],
        [[2.0, 3.0], [6.0, 7.0], [6.0, 7.0]],
    ]


def test_a_stream_that_divides_itself_is_left_alone() -> None:
    found = facts("""
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(torch.arange(float(s.rank), 6.0, 2.0))

        loader = DataLoader(Stream(), batch_size=3)
        found["seen"] = s.all_gather_object([x.tolist() for x in loader])
        found["explain"] = s.explain()
    """)
    assert found["seen"] == [[[0.0, 2.0, 4.0]], [[1.0, 3.0, 5.0]]]
    assert "its dataset divides itself" in " ".join(found["explain"].split())


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_torchmetrics_and_own_accumulators_are_exact_under_shard_eval(ranks: int) -> None:
    found = facts(
        """
        from torchmetrics import MeanMetric
        from torchmetrics.classification import MulticlassAccuracy
        scores, labels = torch.randn(37, 5), torch.randint(5, (37,))
        loader = DataLoader(TensorDataset(scores, labels), batch_size=4)
        accuracy, loss = MulticlassAccuracy(5, average="micro"), MeanMetric()
        correct = seen = 0
        with torch.no_grad():
            for x, y in loader:
                accuracy.update(x, y)
                loss.update(nn.functional.cross_entropy(x, y, reduction="none"))
                correct, seen = correct + (x.argmax(1) == y).sum(), seen + len(y)
        found["accuracy"] = [accuracy.compute().item(), (s.reduce(correct, "sum") / s.reduce(seen, "sum")).item()]
        found["true accuracy"] = (scores.argmax(1) == labels).double().mean().item()
        found["loss"] = [loss.compute().item(), nn.functional.cross_entropy(scores, labels).item()]
        found["seen"] = s.all_gather_object(seen)
    """,
        options="shard_eval=True",
        ranks=ranks,
    )
    assert sum(found["seen"]) == 37 and max(found["seen"]) < 37
    assert found["accuracy"] == pytest.approx([found["true accuracy"]] * 2, abs=1e-7)
    assert found["loss"][0] == pytest.approx(found["loss"][1], abs=1e-6)


def test_noise_from_a_generator_that_each_step_seeds_is_that_of_one_process() -> None:
    """In a pass over a divided loader, other draws differ from rank to rank, and from one process."""
    found = facts("""
        def drawn_by(generator):
            return torch.randn(8, 3, generator=generator)

        net, seeded_once = nn.Linear(3, 1), torch.Generator().manual_seed(0)
        of_one_process = [drawn_by(seeded_once) for _ in range(3)]
        seeded_once.manual_seed(0)
        found["each step"], found["once"] = [], []
        for step, x in enumerate(torch.utils.data.DataLoader(torch.randn(24, 3), batch_size=4)):
            noise = torch.Generator().manual_seed(step)
            z = s.shard(drawn_by(noise))
            of_one = drawn_by(torch.Generator().manual_seed(step))
            found["each step"].append(torch.equal(torch.cat(s.all_gather(z)), of_one))
            once = torch.cat(s.all_gather(s.shard(drawn_by(seeded_once))))
            found["once"].append(torch.equal(once, of_one_process[step]))
            net(x + z).mean().backward()
    """)
    assert found["each step"] == [True, True, True]
    assert found["once"] == [False, False, False]
