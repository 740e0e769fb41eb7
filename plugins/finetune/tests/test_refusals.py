"""Invalid options are refused before the first gradient."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import Unsupported, UsageError

from torchbus_finetune.plugin import Finetune

LOOP = runpy.run_path(str(Path(__file__).parent / "scripts" / "finetuning_loop.py"))
make, train = (LOOP[name] for name in ("make", "train"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unfreeze": 5}, "unfreeze=5 is an int: it must be a dict from names of modules to steps"),
        ({"unfreeze": {3: 5}}, "unfreeze={3: 5}: the key must be the name of a module"),
        ({"unfreeze": {"a": 0}}, "unfreeze={'a': 0}: the value must be a number of real optimizer"),
        ({"unfreeze": {"a": -1}}, "unfreeze={'a': -1}: the value must be a number"),
        ({"unfreeze": {"a": True}}, "unfreeze={'a': True}: the value must be a number"),
        ({"unfreeze": {"a": "later"}}, "or an epoch of s.epochs from 1, such as 'epoch 2'"),
        ({"unfreeze": {"a": "epoch 0"}}, "unfreeze={'a': 'epoch 0'}: the value must be"),
        (
            {"unfreeze": {"a": 5, "b": 3}},
            "unfreeze: 'b' at step 3 stands after 'a' at step 5: list",
        ),
        ({"unfreeze": {"a": 5}, "unfreeze_lr": 0}, "unfreeze_lr=0: it must be positive"),
        ({"unfreeze": {"a": 5}, "unfreeze_lr": "a"}, "unfreeze_lr='a' is a str: it must be what"),
        ({"unfreeze": {"a": 5}, "freeze_batchnorm": 1}, "freeze_batchnorm=1 is an int: it must be"),
        ({"unfreeze_lr": 0.1}, "unfreeze_lr=0.1 without unfreeze=...: it would do nothing"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UsageError) as refused:
        Finetune(**options)
    assert message in str(refused.value)


def refusal(unfreeze, only_head=False, schedule=lambda optimizer: None, **options):
    model, optimizer = make(only_head)
    scheduler = schedule(optimizer)
    with pytest.raises(UsageError) as refused, session(unfreeze=unfreeze, **options):
        train(model, optimizer, scheduler=scheduler)
    assert not any(one.grad is not None for one in model.parameters())
    return str(refused.value)


def test_a_name_that_no_module_has():
    assert refusal({"backbone.layer3": 3}) == (
        "unfreeze={'backbone.layer3': ...} names no parameter of a model that an optimizer trains,"
        " or none that other entries leave to it. The nearest modules: 'backbone.layer2',"
        " 'backbone.layer1', 'backbone.norm'"
    )


def test_a_pattern_that_others_leave_nothing_to():
    assert "unfreeze={'b*.norm': ...} names no parameter" in refusal(
        {"backbone.norm": 2, "b*.norm": 3}
    )


def test_two_patterns_that_are_equally_exact():
    assert refusal({"?ackbone.layer1": 2, "backbone.layer?": 3}) == (
        "unfreeze: '?ackbone.layer1' at step 2 and 'backbone.layer?' at step 3 both name"
        " backbone.layer1.weight, and neither spells out more of it: write the name out for one of"
        " them"
    )


def test_a_model_that_is_frozen_as_a_whole():
    assert (
        "unfreeze=...: all 8 parameter tensors of Net are frozen, so backward would find nothing"
        " to train. Leave out of the schedule what is trained from the beginning"
    ) in refusal({"head": 2, "backbone": 3})


def test_epochs_that_nobody_tells_of():
    assert (
        "unfreeze={'backbone': 'epoch 2'}: the session does not know the loop's epochs. Write `for epoch in"
        " s.epochs(...):`, or give a number of real steps"
    ) in refusal({"backbone": "epoch 2"})


def test_a_rate_for_parameters_that_the_optimizer_has():
    assert "unfreeze_lr=0.1: the optimizers have all parameters already" in refusal(
        {"backbone": 2}, unfreeze_lr=0.1
    )


class Flat:
    """A strategy that makes flat copies once."""

    unfreezes = False

    @hookimpl
    def explain_lines(self):
        return None


def test_a_strategy_that_trains_only_what_was_not_frozen():
    with (
        pytest.raises(Unsupported) as refused,
        session(Flat(), strategy=None, unfreeze={"backbone": 2}),
    ):
        raise AssertionError("the loop must not run")
    assert str(refused.value) == (
        "unfreeze=... with strategy=None: it trains only parameters that are not frozen at the"
        " first forward. Use strategy='ddp' or 'fsdp'"
    )


class OwnScheduler(torch.optim.lr_scheduler.StepLR):
    pass


def test_a_scheduler_that_may_not_accept_a_group():
    assert (
        "unfreeze=...: AdamW lacks parameters that are unfrozen later, and OwnScheduler, its"
        " scheduler, may not accept another group. Give the optimizer all parameters"
    ) in refusal({"backbone": 2}, only_head=True, schedule=lambda one: OwnScheduler(one, 2))


def test_parameters_that_any_of_two_optimizers_could_get():
    with pytest.raises(UsageError) as refused, session(unfreeze={"backbone": 2}):
        model, optimizer = make(only_head=True)
        other = torch.optim.SGD([model.head.weight], lr=0.1)
        train(model, optimizer)
    assert (
        "unfreeze=...: backbone.layer1.weight is in no optimizer, and 2 optimizers train Net: put"
        " it into the one that is to train it"
    ) in str(refused.value)
    del other
