"""Averages against ``torch.optim.swa_utils.AveragedModel``, by hand in one plain process."""

from __future__ import annotations

import gc
import json
import runpy
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import (
    AveragedModel,
    get_ema_multi_avg_fn,
    update_bn,
)
from torchbus import session
from torchbus.errors import UsageError

from torchbus_average.averages import AveragedTensor
from torchbus_average.plugin import Average
from torchbus_testing.forking import fork_script

LOOP = runpy.run_path(str(Path(__file__).parent / "scripts" / "averaging_loop.py"))
make, train, loader, tensors = (LOOP[name] for name in ("make", "train", "loader", "tensors"))


def by_hand(update, start=0, every=1, **options):
    """Return the average after each epoch, and the final weights."""
    model, optimizer = make()
    averaged = AveragedModel(model, multi_avg_fn=update, **options)
    seen, steps = [], 0

    def after_step():
        nonlocal steps
        steps += 1
        if steps > start and (steps - start) % every == 0:
            averaged.update_parameters(model)
        elif not options:
            for own, other in zip(averaged.module.buffers(), model.buffers(), strict=True):
                own.copy_(other)

    train(
        model,
        optimizer,
        loader(8),
        after_step,
        lambda: seen.append(tensors(averaged.module.state_dict())),
    )
    return seen, tensors(model.state_dict())


def in_a_session(ema_decay=None, swa_start=None, every=1, buffers=False, **options):
    average = Average(ema_decay=ema_decay, swa_start=swa_start, every=every, buffers=buffers)
    seen = []
    with session(average, **options) as s:
        model, optimizer = make()
        train(
            model,
            optimizer,
            loader(8),
            after_epoch=lambda: seen.append(tensors(model.state_dict())),
        )
        model.train()
        return seen, tensors(model.state_dict()), s.explain()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(one, other, largest):
    """Without BatchNorm's number of batches, of which torch makes a mean if it averages buffers."""
    names = [name for name, value in one.items() if value.is_floating_point()]
    return len(names) == 8 and all(
        (one[name] - other[name]).abs().max() <= largest * other[name].abs().max() for name in names
    )


@pytest.mark.parametrize(
    ("options", "hand"),
    [
        ({"ema_decay": 0.9}, {"update": get_ema_multi_avg_fn(0.9)}),
        ({"ema_decay": 0.5, "every": 3}, {"update": get_ema_multi_avg_fn(0.5), "every": 3}),
    ],
    ids=["ema", "every third step"],
)
def test_evaluation_sees_the_average_and_training_the_weights(options, hand):
    """Bit for bit."""
    seen, end, _ = in_a_session(**options)
    expected, expected_end = by_hand(**hand)
    assert len(seen) == 3 and all(map(same, seen, expected))
    assert same(end, expected_end) and not same(end, seen[-1])


@pytest.mark.parametrize(("start", "every"), [(0, 1), (2, 3)])
def test_a_mean_is_that_of_torch_up_to_rounding(start, every):
    """AveragedModel has another formula on the CPU for the same mean."""
    seen, end, _ = in_a_session(swa_start=start, every=every)
    expected, expected_end = by_hand(None, start, every)
    assert all(close(one, other, 1e-15) for one, other in zip(seen, expected, strict=True))
    assert same(end, expected_end)


@pytest.mark.parametrize(
    ("options", "hand", "largest"),
    [
        ({"ema_decay": 0.9}, {"update": get_ema_multi_avg_fn(0.9)}, 0.0),
        ({"swa_start": 1}, {"update": None, "start": 1}, 1e-15),
    ],
    ids=["ema", "swa"],
)
def test_buffers_are_averaged_too(options, hand, largest):
    seen, end, _ = in_a_session(**options, buffers=True)
    expected, expected_end = by_hand(**hand, use_buffers=True)
    assert all(close(one, other, largest) for one, other in zip(seen, expected, strict=True))
    assert same(end, expected_end)


def test_a_window_of_gradient_accumulation_is_averaged_once():
    pytest.importorskip("torchbus_accumulate")
    options = {"ema_decay": 0.9, "accumulate_grad_batches": 2}
    _, _, told = in_a_session(**options)
    assert "values so far, by optimizer: 9" in told  # 18 batches


def test_update_bn_in_the_block_of_averages_does_not_disturb_the_training():
    model, optimizer = make()
    averaged = AveragedModel(model)
    train(model, optimizer, loader(8), lambda: averaged.update_parameters(model))
    raw = tensors(model.state_dict())
    update_bn(loader(8), averaged)
    with session(swa_start=0) as s:
        own, optimizer = make()
        train(own, optimizer, loader(8))
        own.train()
        with s.averaged():
            update_bn(loader(8), own)
            assert close(own.state_dict(), averaged.module.state_dict(), 1e-14)
        assert same(own.state_dict(), raw)


def test_a_model_that_trains_in_eval_mode_keeps_its_weights():
    """Fine-tuning with frozen statistics: eval mode does not show evaluation then."""
    with session(ema_decay=0.5) as s:
        model, optimizer = make()
        model.eval()
        for x, y in loader(8):
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        weight = model.head.weight.detach().clone()
        model.eval()
        assert torch.equal(model.head.weight, weight)
        with s.averaged():
            assert not torch.equal(model.head.weight, weight)
        assert torch.equal(model.head.weight, weight)


def test_two_models_are_averaged_and_swapped_each_for_itself():
    with session(ema_decay=0.5):
        (one, first), (other, second) = make(), make()
        for model, optimizer in ((one, first), (other, second)) * 2:
            model(torch.ones(4, 6, dtype=torch.float64)).sum().backward()
            optimizer.step()
        before = tensors(one.state_dict()), tensors(other.state_dict())
        one.eval()
        assert not same(one.state_dict(), before[0]) and same(other.state_dict(), before[1])
        one.train()
        assert same(one.state_dict(), before[0])


def test_part_of_a_model_in_eval_mode_is_no_evaluation():
    with session(ema_decay=0.5):
        model, optimizer = make()
        for _ in range(3):
            model.train()
            model.norm.eval()
            model(torch.ones(4, 6, dtype=torch.float64)).sum().backward()
            before = tensors(model.state_dict())
            optimizer.step()
        weight = model.head.weight.detach().clone()
        model.norm.eval()
        assert torch.equal(model.head.weight, weight) and not same(model.state_dict(), before)


def test_after_the_block_the_weights_are_those_of_the_training():
    with session(ema_decay=0.5):
        model, optimizer = make()
        train(model, optimizer, loader(8))
        averaged = tensors(model.state_dict())
    assert not same(model.state_dict(), averaged)


@pytest.mark.parametrize(
    "options", [{}, {"strategy": "ddp", "devices": 2}, {"strategy": "fsdp", "devices": 2}], ids=str
)
def test_after_a_block_that_ends_in_eval_mode(options, tmp_path):
    """Models have the weights of the training, or with load_best the averages of the best epoch."""
    pytest.importorskip("torchbus_checkpoint")
    script = Path(__file__).parent / "scripts" / "after_the_block.py"
    result = fork_script(script, json.dumps(options), cwd=tmp_path)
    assert json.loads(result.ok().stdout) == ["trained at the end", "averaged in epoch 1"]


def test_a_step_on_averages_is_an_error():
    with session(ema_decay=0.5):
        model, optimizer = make()
        train(model, optimizer, loader(8))
        model(torch.ones(4, 6, dtype=torch.float64)).sum().backward()
        with pytest.raises(UsageError, match=r"SGD.step\(\) while averages replace its weights"):
            optimizer.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ema_decay": "a"}, "ema_decay='a' is a str: it must be a number from 0 to 1"),
        ({"ema_decay": 1.5}, "ema_decay=1.5: it must be from 0 to 1"),
        ({"swa_start": 0.75}, "swa_start=0.75 is a float: it must be a number of optimizer steps"),
        ({"swa_start": -1}, "swa_start=-1: it must be 0 or more optimizer steps"),
        ({"ema_decay": 0.9, "swa_start": 3}, "ema_decay=0.9 and swa_start=3: a session keeps one"),
        ({"every": 0}, "every=0: it must be 1 or more optimizer steps"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UsageError, match=message):
        Average(**options)


def test_averages_that_nobody_asked_for_are_an_error():
    with session() as s, pytest.raises(UsageError, match=r"s.averaged\(\): nothing is averaged"):
        s.averaged().__enter__()


def test_a_checkpoint_inside_the_block_of_averages_is_an_error(tmp_path):
    pytest.importorskip("torchbus_checkpoint")
    with session(ema_decay=0.9) as s:
        model, optimizer = make()
        train(model, optimizer, loader(8))
        model.train()
        with (
            s.averaged(),
            pytest.raises(Exception, match=r"s.save\(\) inside s.averaged\(\): a run resumes"),
        ):
            s.save(tmp_path / "saved")


def test_averages_of_another_model_are_an_error():
    entry = AveragedTensor(torch.zeros(2))
    with pytest.raises(
        UsageError, match=r"has the shape \(3,\), and the tensor of this run \(2,\)"
    ):
        entry.load({"count": 1, "average": torch.zeros(3), "training": None})


def test_out_of_eval_the_averages_are_in_place_only_in_their_block():
    with session(Average(ema_decay=0.9, in_eval=False)) as s:
        model, optimizer = make()
        train(model, optimizer, loader(8))
        weights = tensors(model.state_dict())
        with s.averaged():
            assert not same(model.state_dict(), weights)
        assert same(model.state_dict(), weights)


def trained_in_a_function(model, steps=3):
    """The optimizer is freed when the function returns."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2)).sum().backward()
        optimizer.step()


def test_averages_outlive_their_optimizer():
    with session(Average(ema_decay=0.5), strategy=None) as s:
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        trained_in_a_function(model)
        model.eval()
        assert model.weight.tolist() == [[-0.125, -0.125]]
        model.train()
        assert model.weight.tolist() == [[-0.5, -0.5]]
        with s.averaged():
            assert model.weight.tolist() == [[-0.125, -0.125]]
        trained_in_a_function(model, 1)  # another optimizer begins another average
        model.eval()
        assert model.weight.tolist() == [[-1.0, -1.0]]
        model.train()


def test_averages_end_with_their_model():
    with session(average := Average(ema_decay=0.5), strategy=None):
        model = torch.nn.Linear(2, 1, bias=False)
        trained_in_a_function(model)
        assert len(average._all()) == 1
        del model
        gc.collect()
        assert average._all() == []
