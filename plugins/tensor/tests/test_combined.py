"""``strategy="ddp", tp=2`` and ``strategy="fsdp", tp=2`` over 2 x 2 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"
ROUNDING = 1e-12


@pytest.mark.parametrize(
    ("strategy", "part"), [("fsdp", 0.25), pytest.param("ddp", 0.5, marks=pytest.mark.slow)]
)
def test_the_numbers_of_one_process(strategy, part):
    """Losses, norms, evaluation, parameters: SGD, AdamW, two groups, a ragged last batch."""
    found = fork_script(SCRIPTS / "combined.py", strategy, timeout_s=240).json()
    for kind in ("mlp sgd", "mlp adamw", "window sgd", "gpt sgd"):
        difference, ranks_agree, held = found[f"{kind}"]
        assert difference < ROUNDING and ranks_agree and held == part
        assert found[f"{kind} losses"] < ROUNDING
        assert found[f"{kind} after"] < ROUNDING and found[f"{kind} plain"]
    text = " ".join(found["explain"].split())
    assert "4 as 2 (dp) x 2 (tp)" in text and "2 ranks share each layer of the plan" in text
    assert "plan blocks.*.attn.q: colwise" in text


@pytest.mark.slow
def test_what_a_forward_writes_is_kept():
    assert fork_script(SCRIPTS / "combined_writes.py", timeout_s=115).json() < ROUNDING


@pytest.mark.slow
def test_fsdp_at_the_edges():
    """Models on the meta device, sharded checkpoints, nodes that replicate, a plan by default."""
    found = fork_script(SCRIPTS / "combined_edges.py", timeout_s=240).json()
    assert found["meta"] == 0.0
    assert found["sharded to 2x2"] < ROUNDING and found["sharded to fsdp"] < ROUNDING
    assert found["hybrid"] < ROUNDING and found["hybrid sizes"] == [1, 2, 2]
    assert found["objects"] < ROUNDING and found["nan"]


REFUSALS = {
    "ranks": "tp=3 with 4 ranks: ranks form groups of tp ranks, so tp must divide their number",
    "ranks, ddp": "tp=3 with 4 ranks: ranks form groups of tp ranks, so tp must divide",
    "type": "tp='two' is a str: it must be a number of ranks that share a layer",
    "zero": "tp=0: say how many ranks share a layer",
    "plan alone": "loss_parallel= without tp=: say how many ranks share a layer, such as tp=2",
    "plan alone, ddp": "loss_parallel= without tp=: say how many ranks share a layer, such as tp=2",
    "no module": "plan: 'blocks.*.upp' matches no module of the models that are trained. The nearest"
    " names are blocks.*.up,",
    "no module, ddp": "plan: 'blocks.*.upp' matches no module",
    "features": "plan: Mlp.first has in_features 5, which 2 ranks can't divide evenly",
    "auto": "plan='auto' found no attention and no MLP that it knows",
    "pipeline": "tp: an option of strategy='tp', and the strategy here is 'pipeline'",
    "no plugin": "tp=2 with strategy='fsdp': no plugin divides the layers of Mlp: pip install",
    "penalty": "torch.autograd.grad(create_graph=True) with divided layers",
    "penalty, ddp": "torch.autograd.grad(create_graph=True) with divided layers",
    "outside": "mixes parts of parameters or gradients with whole tensors",
}


@pytest.mark.slow
def test_what_cannot_be_is_refused_before_the_first_step():
    found = fork_script(SCRIPTS / "combined_refused.py", timeout_s=240).json()
    assert {name: found[name] for name in REFUSALS if REFUSALS[name] not in found[name]} == {}
