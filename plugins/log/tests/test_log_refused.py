"""What can not be logged, and what is logged however the block ends."""

from __future__ import annotations

import math

import pytest
import torch
from torchbus import session
from torchbus.errors import UsageError
from torchmetrics import MeanMetric

from torchbus_testing.recorder import RecordingLogger


def test_nan_and_infinity_are_values():
    hears = RecordingLogger()
    with session(strategy=None, logger=hears) as s:
        for value in (math.nan, math.inf, -math.inf):
            s.log("x", torch.tensor(value), on_epoch=True, on_step=True)
    assert [str(value) for _, value in hears.of("x_step")] == ["nan", "inf", "-inf"]
    assert math.isnan(hears.of("x_epoch")[0][1])


@pytest.mark.parametrize("error", [None, SystemExit(0), ValueError("boom")])
def test_however_the_block_ends_nothing_is_lost(error):
    hears = RecordingLogger()
    try:
        with session(strategy=None, logger=hears, autolog=False) as s:
            s.log("x", 1.0, sync_dist=True)
            if error is not None:
                raise error
    except (SystemExit, ValueError):
        pass
    assert hears.of("x") == [(0, 1.0)]


PASS = ". Pass a number, or a tensor of one element"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.log("loss", "low"), f"s.log('loss', 'low'): a str is not a number{PASS}"),
        (lambda s: s.log("loss", None), f"s.log('loss', None): a NoneType is not a number{PASS}"),
        (
            lambda s: s.log("loss", torch.ones(2, 3)),
            "s.log('loss', ...): a tensor of shape (2, 3) is not one number: take its mean, for example",
        ),
        (
            lambda s: s.log("loss", torch.tensor(1j)),
            f"s.log('loss', tensor(0.+1.j)): a tensor of torch.complex64 is not a number{PASS}",
        ),
        (lambda s: s.log(3, 1.0), "s.log(3, ...): the name must be a string"),
        (lambda s: s.log("", 1.0), "s.log('', ...): the name must be a string"),
        (
            lambda s: s.log("loss", 1.0, sync=True),
            "s.log has no option 'sync': there are batch_size, on_epoch, on_step, prog_bar, reduce, step, sync_dist",
        ),
        (
            lambda s: s.log("loss", 1.0, reduce_fx="max"),
            "s.log has no option 'reduce_fx': here it is called reduce=",
        ),
        (
            lambda s: s.log("loss", 1.0, rank_zero_only=True),
            "s.log has no option 'rank_zero_only': leave it out: a value without sync_dist or"
            " on_epoch is rank 0's",
        ),
        (
            lambda s: s.log("loss", 1.0, reduce="median"),
            "reduce='median' is unknown: use one of mean, sum, max, min",
        ),
        (
            lambda s: s.log("loss", 10**400),
            "s.log('loss', ...): the number is too large for a float. Log its logarithm: s.log('loss', math.log(value))",
        ),
        (
            lambda s: s.log("loss", torch.zeros((), device="meta")),
            "s.log('loss', ...): a tensor on the meta device has no value. Log one on s.device",
        ),
        (
            lambda s: s.log("loss", 1.0, on_step=False),
            "s.log('loss', ..., on_step=False) logs nothing: pass on_epoch=True as well",
        ),
        (
            lambda s: s.log("loss", 1.0, batch_size=-1),
            "s.log(..., batch_size=-1): it must be a number of samples",
        ),
        (
            lambda s: s.log_dict({"loss": 1.0}, batch_size="8"),
            "s.log(..., batch_size='8'): it must be a number of samples",
        ),
        (
            lambda s: s.log("loss", 1.0, step=-5),
            "s.log(..., step=-5): it must be a number of optimizer steps",
        ),
        (
            lambda s: s.log_histogram("x", [1.0], step=1.5),
            "s.log_histogram(..., step=1.5): it must be a number of optimizer steps",
        ),
        (
            lambda s: s.log("acc", MeanMetric(), on_step=True),
            "s.log('acc', ..., on_step=True): a MeanMetric is computed at the end of the pass, not in a step."
            " For a step's value, log what a call of it returns, under another name",
        ),
        (
            lambda s: s.log("acc", MeanMetric(), reduce="max"),
            "s.log('acc', ..., reduce=...): a MeanMetric has its own way: leave it out, or log metric.compute()",
        ),
        (
            lambda s: s.log("acc", MeanMetric(), on_epoch=True, batch_size=4),
            "s.log('acc', ..., batch_size=...): a MeanMetric has its own way: leave it out, or log metric.compute()",
        ),
    ],
)
@pytest.mark.parametrize("logger", [None, RecordingLogger()])
def test_what_can_not_be_logged(call, words, logger):
    with session(strategy=None, logger=logger) as s, pytest.raises(UsageError) as error:
        call(s)
    assert str(error.value) == words


def test_a_value_of_no_samples_does_not_count():
    hears = RecordingLogger()
    with session(strategy=None, logger=hears, autolog=False) as s:
        for value, samples in ((1.0, 2), (9.0, 0), (4.0, 1)):
            s.log("x", value, on_epoch=True, batch_size=samples)
    assert hears.of("x") == [(0, 2.0)]


def test_a_value_of_many_samples_under_vmap_is_not_a_number():
    with (
        session(strategy=None, logger=RecordingLogger()) as s,
        pytest.raises(UsageError, match=r"(?s)BatchedTensor.*is not a number"),
    ):
        torch.func.vmap(lambda x: s.log("loss", x))(torch.ones(2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log_every_n_steps": 0}, "log_every_n_steps=0: it must be 1 or more"),
        (
            {"log_every_n_steps": 2.5},
            "log_every_n_steps=2.5 is a float: it must be a number of optimizer steps",
        ),
        ({"autolog": "no"}, "autolog='no' is a str: it must be True or False"),
        ({"log_dir": 3}, "log_dir=3 is an int: it must be a path"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(UsageError) as error:
        session(strategy=None, **options)
    assert str(error.value) == words
