"""Two ranks, divided, against one process that knows nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.environments import run_on_separate_hosts
from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

SCRIPTS = Path(__file__).parent / "scripts"

HEAD = (SCRIPTS / "sharded_head.py").read_text()
GRADIENTS = "ddp_sharded, gradients too"
NUMBERS = SCRIPTS / "sharded_numbers.py"


def facts(script: Path, strategy: str) -> dict[str, Any]:
    return dict(fork_script(script, strategy, timeout_s=115).json())


@pytest.fixture(scope="module", params=["fsdp", "ddp_sharded", GRADIENTS])
def numbers(request) -> dict[str, Any]:
    return facts(NUMBERS, request.param)


@pytest.mark.share(2)
def test_the_numbers_of_one_process(numbers):
    """Losses, norms of clipping, evaluation, parameters: an MLP, a convolutional net, a
    transformer.
    """
    assert len(numbers) == 3
    assert all(difference < 1e-9 and ranks_agree for difference, ranks_agree in numbers.values()), (
        numbers
    )


BEFORE = SCRIPTS / "sharded_before.py"


@pytest.fixture(scope="module")
def fsdp() -> dict[str, Any]:
    return facts(BEFORE, "fsdp")


@pytest.fixture(scope="module")
def sharded() -> dict[str, Any]:
    return facts(BEFORE, "ddp_sharded")


@pytest.fixture(scope="module")
def gradients() -> dict[str, Any]:
    return facts(BEFORE, GRADIENTS)


def test_ddp_sharded_divides_gradients_where_it_is_asked_to(sharded, gradients):
    assert (
        sharded["part of the gradients"] == 1.0
        and 0.4 < gradients["part of the gradients"] < 0.6
        and 0.4 < gradients["part of the state"] < 0.6
    )
    assert (
        gradients["before"] < 1e-12
        and gradients["plain tensors"]
        and gradients["loaded"]
        and gradients["whole after"] == [True] * 4
    )
    assert "parameters are whole from forward to the end of backward" in " ".join(
        gradients["explain"].split()
    )


def test_an_optimizer_that_was_made_and_used_before_goes_on(fsdp, sharded):
    assert fsdp["before"] < 1e-12 and sharded["before"] < 1e-12


def test_each_rank_keeps_about_half_of_the_state(fsdp, sharded):
    assert 0.4 < fsdp["part of the state"] < 0.6 and 0.3 < sharded["part of the state"] < 0.7


def test_what_is_saved_and_loaded_is_whole(fsdp, sharded):
    assert (
        fsdp["plain tensors"]
        and fsdp["loaded"]
        and sharded["loaded"]
        and sharded["whole state"]
        and sharded["state after"] == 6
    )


def test_after_the_block_model_and_optimizer_are_whole_and_a_second_one_can_follow(fsdp, sharded):
    assert fsdp["whole after"] == sharded["whole after"] == [True] * 4 and fsdp["state after"] == 6


def test_copies_are_refused_by_fsdp_and_made_by_ddp_sharded(fsdp, sharded):
    assert (
        "copy.deepcopy of Mlp under strategy='fsdp'" in fsdp["deepcopy"]
        and sharded["deepcopy"] == "copied"
    )


def test_explain_says_what_is_divided(fsdp, sharded):
    assert (
        "model: Mlp, 418 parameters in 6 tensors: divided in 1 unit; each rank keeps 1/2 of it"
        in " ".join(fsdp["explain"].split())
    )
    assert "this rank keeps the state of" in " ".join(sharded["explain"].split())


def test_explain_lists_what_is_replaced(fsdp):
    told = " ".join(fsdp["explain"].split())
    names = (
        "tolist",
        "numpy",
        "__format__",
        "__getitem__",
        "__setitem__",
        "__iter__",
        "select",
        "narrow",
        "unbind",
        "split",
        "chunk",
        "__deepcopy__",
    )
    methods = ", ".join(f"DTensor.{name}" for name in names)
    assert f"DTensor's operators, {methods}" in told
    for each in (
        "torch.autograd.grad, ",
        "Parameter.data, DTensor.data",
        "torch.optim.adamw.adamw",
    ):
        assert each in told


def fails(body: str, options: str = "") -> Result:
    return fork_script(HEAD + f"with opened('fsdp'{options}) as s:\n    {body}\n")


def test_create_graph_is_refused():
    result = fails(
        "m = Mlp(); o = torch.optim.SGD(m.parameters(), 0.1); m(torch.ones(2, 6)).mean().backward(create_graph=True)"
    )
    assert result.ok(1) and "backward(create_graph=True) under strategy='fsdp'" in result.stderr


def test_training_a_model_that_is_not_divided_is_refused():
    result = fails("m = Mlp(); m(torch.ones(2, 6)).mean().backward()")
    assert (
        result.ok(1)
        and "Mlp got gradients, but was called before any optimizer had its parameters"
        in result.stderr
    )


def test_a_parameter_without_a_dimension_is_refused_by_fsdp():
    body = "m = Mlp(); m.scale = nn.Parameter(torch.tensor(1.0)); torch.optim.SGD(m.parameters())"
    result = fork_script(HEAD + f"with opened('fsdp') as s:\n    {body}\n")
    assert result.ok(1) and "Mlp.scale has no dimension" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "optimizer"), [("fsdp", "LBFGS"), ("ddp_sharded", "LBFGS"), ("fsdp", "Adafactor")]
)
def test_optimizers_that_are_refused(strategy, optimizer):
    words = {"LBFGS": "all parameters together", "Adafactor": "whole rows and columns"}[optimizer]
    result = fork_script(
        HEAD
        + f"with opened('{strategy}') as s:\n    m = Mlp(); torch.optim.{optimizer}(m.parameters())\n"
    )
    assert (
        result.ok(1)
        and f"strategy='{strategy}' with {optimizer}: its step looks at {words}" in result.stderr
    )


@pytest.mark.slow
def test_other_methods_that_are_named():
    body = "Mlp.loss = lambda self, x: self(x).square().mean(); m = Mlp(); o = torch.optim.SGD(m.parameters(), 0.1); "
    body += "m.loss(torch.ones(2, 6)).backward()"
    assert fails(body, ", forward_methods=('loss',)").ok()


def test_a_part_that_is_called_before_the_whole_is_refused():
    made = "m = nn.DataParallel(nn.Sequential(Mlp(), nn.ConstantPad1d((0, 4), 0.0), Mlp()))"
    body = f"{made}; o = torch.optim.SGD(m.parameters(), 0.1); x = torch.ones(2, 6)"
    result = fails(f"{body}; m.module(x); m(x)")
    assert "a part of a model was called before the model that its optimizer holds" in result.stderr


def test_a_parameter_that_is_replaced_after_dividing_is_refused():
    body = "from torch.nn.utils import prune; m = Mlp(); x = torch.ones(2, 6); "
    body += "o = torch.optim.SGD(m.parameters(), 0.1); m(x); prune.random_unstructured(m[0], 'weight', 0.5); m(x)"
    assert "0.weight_orig of Mlp was made after strategy='fsdp' had divided" in fails(body).stderr


def test_a_session_waits_for_no_parts_of_an_earlier_one():
    ranks = run_on_separate_hosts([str(SCRIPTS / "sessions_in_turn.py")], 2)
    assert [rank.ok().stdout for rank in ranks] == ["1\n1\n1\n", ""]
