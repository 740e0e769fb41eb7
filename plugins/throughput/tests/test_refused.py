"""Bad input: what is refused, and when."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torchbus import session
from torchbus.errors import UsageError

LOOPS = runpy.run_path(str(Path(__file__).parent / "scripts" / "loops.py"))
loader, make, loss_of = (LOOPS[name] for name in ("loader", "make", "loss_of"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"throughput_every": 0}, "throughput_every=0: it must be 1 or more steps"),
        (
            {"throughput_every": 2.5},
            "throughput_every=2.5 is a float: it must be a number of optimizer steps",
        ),
        (
            {"tokens": 2.5},
            "tokens=2.5: it must be a key, an attribute or an index of the batch, or a function"
            " from the batch to an int",
        ),
        ({"flops": -1}, "flops=-1: FLOPs per sample must be more than 0"),
        ({"flops": "yes"}, "flops='yes' is a str: it must be True, False"),
        (
            {"flops": True, "peak_flops": 0},
            "peak_flops=0: FLOPs per second of one device must be more than 0, such as 989e12",
        ),
        ({"flops": True, "peak_flops": float("nan")}, "peak_flops=nan: FLOPs per second"),
        ({"peak_flops": 1e12}, "peak_flops=1000000000000.0 without flops=...: it would do nothing"),
        ({"model_summary": -1}, "model_summary=-1: it must be 0 or more levels of parts"),
        ({"model_summary": "deep"}, "model_summary='deep' is a str: it must be True, False"),
    ],
)
def test_options(options, message):
    with pytest.raises(UsageError) as raised:
        session(strategy=None, **options)
    assert message in str(raised.value)


def run(tokens, collate, steps=6):
    model, optimizer = make()
    with session(strategy=None, throughput_every=1, tokens=tokens) as s:
        for batch in loader(collate=LOOPS[collate]):
            x, y = batch if isinstance(batch, tuple) else vars(batch).values()
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        return s.throughput()


def in_a_tensor(batch):
    return torch.tensor(4)


def negative(batch):
    return -1


def failing(batch):
    return batch["words"]


@pytest.mark.parametrize(
    ("tokens", "collate", "message"),
    [
        (
            "no_such_key",
            "as_tuple",
            "the batch has no 'no_such_key', which tokens= names as a key, an attribute or an index:"
            " it is a tuple of 2: Tensor, Tensor",
        ),
        (
            "no_such_key",
            "as_object",
            "the batch has no 'no_such_key', which tokens= names as a key, an attribute or an index:"
            " it is a Batch with the attributes words, target",
        ),
        (
            2,
            "as_tuple",
            "the batch has no 2, which tokens= names as a key, an attribute or an index",
        ),
        (
            "count",
            "as_tuple",
            "the batch has a builtin_function_or_method as 'count', which tokens= names: a tensor or"
            " a count is needed. Pass a function from the batch to an int",
        ),
        (
            in_a_tensor,
            "as_tuple",
            "tokens=in_a_tensor: it returned a Tensor, and must return an int that the host knows,"
            " such as batch['input_ids'].numel()",
        ),
        (
            negative,
            "as_tuple",
            "tokens=negative: it returned -1, and a count must be 0 or more",
        ),
        (
            failing,
            "as_tuple",
            "tokens=failing: it raised TypeError('tuple indices must be integers or slices, not"
            " str') for a batch that is a tuple of 2: Tensor, Tensor",
        ),
    ],
)
def test_tokens_that_the_first_batch_does_not_show(tokens, collate, message):
    with pytest.raises(UsageError) as raised:
        run(tokens, collate)
    assert message in str(raised.value)


def test_a_dict_names_its_keys():
    model, optimizer = make()
    with (
        pytest.raises(UsageError, match="a dict with the keys 'words', 'target'"),
        session(strategy=None, tokens="no_such_key"),
    ):
        for batch in loader(collate=LOOPS["as_dict"]):
            loss_of(model, *batch.values()).backward()
            optimizer.step()


def test_a_batch_that_feeds_nothing_may_show_no_tokens():
    """A pass with gradients that only looks at the data."""
    model, optimizer = make()
    with session(strategy=None, throughput_every=1, tokens="words") as s:
        for _ in loader(collate=LOOPS["as_tuple"]):
            pass
        for batch in loader(collate=LOOPS["as_dict"]):
            optimizer.zero_grad()
            loss_of(model, *batch.values()).backward()
            optimizer.step()
        assert s.throughput().tokens == 8


def test_tokens_that_a_later_batch_does_not_show_stop_nothing():
    sizes = iter([4, 4, -4, -4, 4, 2])
    with pytest.warns(UserWarning) as caught:
        last = run(lambda batch: next(sizes), "as_tuple")
    assert [str(one.message) for one in caught] == [
        "tokens=<lambda>: it returned -4, and a count must be 0 or more. Training continues, and"
        " tokens are not counted in this window"
    ]
    assert last.tokens == 2
