"""The section ``optimizer`` of a config: which class steps, and what contradicts the loop."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torchbus.errors import UsageError

from torchbus_deepspeed import _compat, optimizers
from torchbus_deepspeed.optimizers import OptimizerSection, refuse_unless_by_element
from torchbus_deepspeed.strategy import DeepSpeed

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def loops(cls=torch.optim.AdamW, **options):
    return cls([nn.Parameter(torch.ones(2))], **{"lr": 0.1, **options})


def chosen(kind, optimizer, device=CPU, offload=False, **params):
    return OptimizerSection({"type": kind, "params": params}, offload).of(optimizer, device)


@pytest.fixture
def made(monkeypatch):
    """What would be made of DeepSpeed's classes, which need a compiler, or CUDA."""
    calls = []

    def fake(module, name):
        def make(groups, **arguments):
            calls.append((module, name, arguments, groups))
            adam = torch.optim.AdamW if set(arguments.values()) == {True} else torch.optim.Adam
            known = [{**group, "params": [nn.Parameter(torch.ones(1))]} for group in groups]
            return adam(known)

        return make

    monkeypatch.setattr(_compat, "optimizer_class", fake)
    return calls


@pytest.mark.parametrize(
    ("kind", "device", "offload", "params", "name"),
    [
        ("AdamW", CUDA, False, {}, "FusedAdam"),
        ("Adam", CUDA, False, {}, "FusedAdam"),
        ("FusedAdam", CUDA, False, {}, "FusedAdam"),
        ("AdamW", CUDA, False, {"torch_adam": True}, None),
        ("AdamW", CUDA, True, {}, "DeepSpeedCPUAdam"),
        ("AdamW", CUDA, True, {"torch_adam": True}, None),
        ("Adagrad", CUDA, False, {}, None),
        ("Adagrad", CUDA, True, {}, "DeepSpeedCPUAdagrad"),
        ("Lion", CUDA, False, {}, "FusedLion"),
        ("Lion", CUDA, True, {}, "DeepSpeedCPULion"),
        ("AdamW", CPU, False, {}, None),
        ("AdamW", CPU, True, {}, "DeepSpeedCPUAdam"),
        ("FusedAdam", CPU, False, {}, "FusedAdam"),
        ("Lion", CPU, False, {}, None),
        ("SGD", CPU, True, {}, None),
        ("auto", CUDA, True, {}, None),
    ],
)
def test_a_type_means_the_class_that_deepspeed_makes_of_it(kind, device, offload, params, name):
    """As ``_configure_basic_optimizer`` of DeepSpeed 0.19.8 has it."""
    found = OptimizerSection({"type": kind, "params": params}, offload).meant(device)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("kind", "offload", "cls", "params", "expected"),
    [
        ("AdamW", True, "AdamW", {}, ("DeepSpeedCPUAdam", {"adamw_mode": True})),
        ("FusedAdam", False, "AdamW", {}, ("FusedAdam", {"adam_w_mode": True})),
        (
            "Adam",
            True,
            "Adam",
            {"adam_w_mode": False},
            ("DeepSpeedCPUAdam", {"adamw_mode": False}),
        ),
        (
            "AdamW",
            True,
            "AdamW",
            {"fp32_optimizer_states": True, "bias_correction": True, "lr": "auto"},
            ("DeepSpeedCPUAdam", {"adamw_mode": True, "fp32_optimizer_states": True}),
        ),
    ],
)
def test_the_class_gets_groups_and_arguments(made, kind, offload, cls, params, expected):
    optimizer = loops(getattr(torch.optim, cls), weight_decay=0.1, betas=(0.8, 0.9))
    kernel = chosen(kind, optimizer, CPU, offload, **params)
    module, name, arguments, groups = made[-1]
    assert module == "deepspeed.ops.adam" and (name, arguments) == expected
    assert kernel.name == name
    [group] = groups
    assert group == {
        "params": [],
        "lr": 0.1,
        "betas": (0.8, 0.9),
        "eps": 1e-8,
        "weight_decay": 0.1,
    }


def test_other_steps_than_the_loops_are_refused(made):
    with pytest.raises(
        UsageError, match=r"differs from that of the loop's AdamW with amsgrad=True"
    ):
        chosen("AdamW", loops(amsgrad=True), offload=True)
    with pytest.raises(UsageError, match=r"the loop's Adagrad with lr_decay=0.5"):
        chosen("Adagrad", loops(torch.optim.Adagrad, lr_decay=0.5), offload=True)


def test_a_class_that_only_has_the_name_is_tried_on_small_tensors(made):
    namesake = type("AdamW", (torch.optim.SGD,), {})
    with pytest.raises(
        UsageError, match=r"whose step differs from that of the loop's AdamW: leave"
    ):
        chosen("AdamW", loops(namesake), offload=True)


@pytest.mark.parametrize(
    ("kind", "optimizer", "params", "words"),
    [
        ("adamw", {}, {"lr": 0.2}, "lr=0.1, and config says optimizer.params.lr=0.2"),
        ("AdamW", {}, {"bias_correction": False}, "has bias_correction=True, and config"),
        ("Lion", {}, {}, "the loop makes AdamW, and config says .*'Lion'"),
        ("Adagrad", {}, {}, "the loop makes AdamW, and config says .*'Adagrad'"),
        ("OneBitAdam", {}, {}, "0.19.6 was the last release"),
        (
            "Adam",
            {"cls": torch.optim.Adam, "weight_decay": 0.3},
            {},
            r"the loop's Adam has weight_decay=0.3 in the gradient .*type='Adam' with"
            r" adam_w_mode=True has it beside the gradient .* write adam_w_mode=False",
        ),
        (
            "AdamW",
            {"cls": torch.optim.Adam, "weight_decay": 0.3},
            {"adam_w_mode": False},
            "has it beside the gradient",
        ),
    ],
)
def test_contradictions_name_both_values(kind, optimizer, params, words):
    with pytest.raises(UsageError, match=words):
        chosen(kind, loops(**optimizer), **params)


def test_what_a_scheduler_or_the_loop_notes_in_a_group_is_no_matter(made):
    optimizer = loops()
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    optimizer.param_groups[0]["name"] = "weights"
    assert "initial_lr" in optimizer.param_groups[0]
    assert chosen("AdamW", optimizer, offload=True).name == "DeepSpeedCPUAdam"


def test_what_repeats_the_loop_is_taken():
    assert chosen("AdamW", loops(), lr="auto", betas=[0.9, 0.999]) is None
    assert chosen("Adam", loops(torch.optim.Adam)) is None
    assert chosen("Adam", loops(torch.optim.Adam, weight_decay=0.1), adam_w_mode=False) is None
    assert chosen("SGD", loops(torch.optim.SGD), offload=True) is None


@pytest.mark.parametrize(
    ("kind", "device", "offload", "words"),
    [
        (
            "FusedLion",
            CPU,
            False,
            "FusedLion has no code for a CPU.* 'lion' and turn on offload_optimizer",
        ),
        ("FusedAdam", CUDA, True, "steps what is on the model's device, and offload_optimizer is"),
        ("DeepSpeedCPUAdam", CUDA, False, "steps what is in main memory, and offload_optimizer is"),
    ],
)
def test_a_class_in_the_wrong_place_is_refused(kind, device, offload, words):
    with pytest.raises(UsageError, match=words):
        OptimizerSection({"type": kind}, offload).meant(device)


def test_an_operator_that_can_not_be_built_is_an_error_before_any_rank_starts(monkeypatch):
    """It names what failed, as DeepSpeed or the compiler says it."""

    def unbuilt(module, name):
        def make(groups, **arguments):
            raise RuntimeError("DeepSpeedCPUAdam requires the cpu_adam op") from RuntimeError(
                "Unable to JIT load the cpu_adam op due to ninja not being installed."
            )

        return make

    monkeypatch.setattr(_compat, "optimizer_class", unbuilt)
    offload = {"offload_optimizer": {"device": "cpu"}}
    config = {"optimizer": {"type": "AdamW"}, "zero_optimization": offload}
    with pytest.raises(
        UsageError, match=r"DeepSpeedCPUAdam, .* due to ninja not being installed\. Install a C\+\+"
    ):
        DeepSpeed(config=config).config.build()
    DeepSpeed(config={"optimizer": {"type": "AdamW"}}).config.build()  # needs none


def test_states_in_torchs_layout_and_back():
    own = {"step": 3, "exp_avg_sq": torch.ones(2)}
    out = optimizers.CPU_ADAGRAD.outward(own)
    assert out["step"].dtype == torch.float32 and list(out) == ["sum", "step"]
    back = optimizers.CPU_ADAGRAD.inward(out)
    assert back["step"] == 3 and type(back["step"]) is int and back["exp_avg_sq"] is out["sum"]
    lion = {"step": 3, "exp_avg": 0, "exp_avg_sq": 0}
    assert list(optimizers.CPU_LION.outward(lion)) == ["exp_avg"]
    assert optimizers.CPU_LION.inward({"exp_avg": 0})["step"] == 0
    assert optimizers.CPU_ADAM.inward({}) == {}


def test_lamb_is_no_optimizer_of_flat_parts(monkeypatch):
    """Its ratio of trust is that of a whole parameter."""
    lamb = type("FusedLamb", (torch.optim.SGD,), {"__module__": "deepspeed.ops.lamb.fused_lamb"})

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.data.sub_(p.grad * p.norm() / p.grad.norm())

    lamb.step = step
    with pytest.raises(UsageError, match="its step is not elementwise"):
        refuse_unless_by_element(loops(lamb), "deepspeed")
