"""What a session under DeepSpeed refuses, before a number is wrong."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from .warm import fork_script

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")

SCRIPTS = Path(__file__).parent / "scripts"
STAGE_3 = {"zero_optimization": {"stage": 3}}
NO_FP16 = """
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    CPU_Accelerator.is_fp16_supported = lambda self: False  # a processor with AVX512-FP16 has it
"""
FORGED = "optimizer.load_state_dict({{**optimizer.state_dict(), 'state': {{1: {}}}}})"
MANY = "{f'n{i}': torch.ones(1) for i in range(17)}"
REFUSED = """
    import torch
    from torchbus import session
{before}
    with session(strategy="deepspeed", devices=2, launch="fork", {options}):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.{optimizer}(model.parameters())
        x = torch.ones(4, 2)
        for step in range(2):
            optimizer.zero_grad()
            {loss}.mean().backward({backward})
            {line}
            optimizer.step()
"""


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"options": "accumulate_grad_batches=2, config={'zero_optimization': {'stage': 3}}"},
            "accumulate_grad_batches at stage 3",
        ),
        (
            {
                "options": "config={'zero_optimization': {'stage': 0},"
                " 'optimizer': {'type': 'AdamW'}}"
            },
            "the loop makes SGD, and config says optimizer.type='AdamW'",
        ),
        ({"optimizer": "LBFGS"}, "strategy='deepspeed' with LBFGS"),
        ({"optimizer": "Adafactor"}, "its step is not elementwise"),
        ({"line": "model.weight.grad.norm()"}, "p.grad is None (it has no 'norm')"),
        ({"backward": "create_graph=True"}, "backward(create_graph=True) under"),
        (
            {"options": "config={'zero_optimization': {'offload_optimizer': {'device': 'nvme'}}}"},
            "needs offload_optimizer.nvme_path",
        ),
        (
            {"options": f"config={STAGE_3}", "loss": "(model(x) @ model.weight)"},
            "parameters are empty outside of the forward of their own module (ZeRO stage 3)",
        ),
        (
            {"options": f"config={STAGE_3}", "line": "model.weight.data.clamp_(-1, 1)"},
            "clamp_ of weight: under strategy='deepspeed', parameters are empty outside of",
        ),
        (
            {"options": f"config={STAGE_3}", "line": "print(model.weight.detach().norm())"},
            "norm of weight: under strategy='deepspeed', parameters are empty outside of",
        ),
        (
            {"loss": f"({FORGED.format(MANY)} or model(x))"},
            "SGD.load_state_dict: 17 kinds of state, and DeepSpeed keeps at most 16",
        ),
        (
            {"line": FORGED.format("{'deepspeed_master': torch.ones(2)}")},
            "'deepspeed_master' of parameter 1 is not a tensor of its shape (1,)",
        ),
        (
            {"options": "accelerator='cpu', config={'fp16': {'enabled': True}}", "before": NO_FP16},
            "DeepSpeed does not support it on this device (cpu): enable bf16 instead",
        ),
    ],
    ids=str,
)
def test_refused_in_a_session(parts, words):
    given = {
        "before": "",
        "options": "",
        "optimizer": "SGD",
        "backward": "",
        "line": "pass",
        **parts,
    }
    given.setdefault("loss", "model(x)")
    result = fork_script(REFUSED.format(**given))
    assert result.status and words in result.stderr, result.stderr


def test_empty_parameters_of_stage_3_have_shapes_and_are_changed_whole():
    result = fork_script(SCRIPTS / "deepspeed_stage_3.py")
    assert not result.status, result.stderr
    assert result.stdout.split() == ["by_state", "True", "gathered", "True"]
