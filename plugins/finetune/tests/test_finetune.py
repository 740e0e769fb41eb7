"""Unfreezing by schedule against the same loop with ``requires_grad`` set by hand, bit for bit."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torchbus import session

LOOP = runpy.run_path(str(Path(__file__).parent / "scripts" / "finetuning_loop.py"))
make, train, loader = (LOOP[name] for name in ("make", "train", "loader"))
SCHEDULE = {"backbone.layer2": 3, "backbone.*": 7}


def set_by_hand(model, step, statistics=True):
    """Before the forward of this step."""
    parts = model.backbone
    for part, first in ((parts["layer1"], 7), (parts["norm"], 7), (parts["layer2"], 3)):
        part.requires_grad_(step >= first)
    if statistics:
        parts["norm"].train(step >= 7)


def by_hand(statistics=True, only_head=False, schedule=lambda optimizer: None, factor=1.0):
    model, optimizer = make(only_head)
    if only_head:
        group = {"params": model.backbone.parameters(), "lr": 0.05 * factor}
        optimizer.add_param_group(group)
    end = train(
        model, optimizer, lambda step: set_by_hand(model, step, statistics), schedule(optimizer)
    )
    return end


def in_a_session(only_head=False, schedule=lambda optimizer: None, **options):
    with session(unfreeze=SCHEDULE, **options) as s:
        model, optimizer = make(only_head)
        end = train(model, optimizer, scheduler=schedule(optimizer))
        return end, s.explain()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("only_head", [False, True], ids=["all in the optimizer", "added"])
def test_a_schedule_is_that_of_a_loop_that_does_it_by_hand(only_head):
    end, told = in_a_session(only_head)
    assert same(end, by_hand(only_head=only_head))
    assert "backbone.layer2: trained since step 3" in told
    assert ("AdamW: 6 tensors added, at 1 x lr" in told) == only_head


def test_statistics_of_frozen_layers_go_on_if_asked_to():
    end, _ = in_a_session(freeze_batchnorm=False)
    assert same(end, by_hand(statistics=False))
    assert not same(end, by_hand())


def lr_lambda(step):
    return 1 / (1 + step)


SCHEDULERS = {
    "step": lambda one: torch.optim.lr_scheduler.StepLR(one, 2),
    "lambda": lambda one: torch.optim.lr_scheduler.LambdaLR(one, lr_lambda),
    "one cycle": lambda one: torch.optim.lr_scheduler.OneCycleLR(
        one, [0.05 * f for f in FACTORS[: len(one.param_groups)]], total_steps=20
    ),
    "sequence": lambda one: torch.optim.lr_scheduler.SequentialLR(
        one,
        [
            torch.optim.lr_scheduler.LinearLR(one, total_iters=3),
            torch.optim.lr_scheduler.CosineAnnealingLR(one, 9),
        ],
        milestones=[3],
    ),
}
FACTORS = [1.0, 0.5]


@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS)
def test_an_added_group_follows_the_schedulers(schedule):
    end, told = in_a_session(True, schedule, unfreeze_lr=0.5)
    assert same(end, by_hand(True, True, schedule, 0.5))
    assert "6 tensors added, at 0.5 x lr" in told


def test_a_model_and_a_scheduler_made_before_the_block_are_found():
    model, optimizer = make(only_head=True)
    scheduler = SCHEDULERS["step"](optimizer)
    with session(unfreeze=SCHEDULE, unfreeze_lr=0.5):
        end = train(model, optimizer, scheduler=scheduler)
    assert same(end, by_hand(True, True, SCHEDULERS["step"], 0.5))


def test_a_scheduler_with_a_metric_knows_the_group():
    with session(unfreeze=SCHEDULE, unfreeze_lr=0.5):
        model, optimizer = make(only_head=True)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=0.02)
        train(model, optimizer)
        for value in (1.0, 2.0, 3.0):
            plateau.step(value)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.02]


def test_an_epoch_of_the_session_unfreezes():
    pytest.importorskip("torchbus_checkpoint")
    with session(unfreeze={"backbone": "epoch 1"}) as s:
        model, optimizer = make()
        flags = []
        train(model, optimizer, lambda step: flags.append(frozen(model)), epochs=s.epochs(2))
    assert flags == [6] * 6 + [0] * 6


def frozen(model):
    return sum(not one.requires_grad for one in model.parameters())


def test_a_window_of_gradient_accumulation_is_one_step():
    pytest.importorskip("torchbus_accumulate")
    with session(unfreeze=SCHEDULE, accumulate_grad_batches=2):
        model, optimizer = make()
        flags = []
        train(model, optimizer, lambda step: flags.append(frozen(model)))
    assert flags == [6] * 6 + [4] * 6  # after the third of six steps


def test_each_model_of_a_gan_counts_the_steps_of_the_loop():
    with session(unfreeze={"backbone": 2}):
        (one, first), (other, second) = make(), make()
        flags = []
        for _ in range(4):
            for model, optimizer in ((one, first), (other, second)):
                flags.append(frozen(model))
                optimizer.zero_grad()
                model(torch.ones(4, 6, dtype=torch.float64)).sum().backward()
                optimizer.step()
    assert flags == [6, 6, 6, 6, 0, 0, 0, 0]


def test_it_says_once_what_it_unfreezes(capsys):
    in_a_session()
    assert capsys.readouterr().err.splitlines() == [
        "torchbus: step 3: backbone.layer2 of Net is trained from now on: 72 parameters in 2 tensors",
        "torchbus: step 7: backbone.* of Net is trained from now on: 72 parameters in 4 tensors",
    ]


def test_explain_says_until_when():
    with session(unfreeze=SCHEDULE) as s:
        model, _ = make()
        told = s.explain()
    assert "backbone.layer2: frozen until step 3" in told
    assert "backbone.*: frozen until step 7" in told and frozen(model) == 6


def test_none_freezes_nothing():
    with session(unfreeze=None) as s:
        model, _ = make()
        assert not frozen(model)
        assert "unfreezing" not in s.explain()


def test_tied_parameters_and_compiled_models_have_the_names_of_their_modules():
    with session(unfreeze={"1": 5}):
        model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))
        model[2].weight = model[1].weight
        compiled = torch.compile(model, backend="eager")
        torch.optim.SGD(compiled.parameters(), lr=0.1)
        assert [one.requires_grad for one in model.parameters()] == [True, True, False, False, True]
