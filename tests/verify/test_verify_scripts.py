"""``torchbus verify`` over what the zoo has not: strategies, options and scripts of its own."""

from __future__ import annotations

import textwrap

import pytest
from verdicts import BETWEEN, DRAWS, SUMMED, WEIGHTED, names, verified

from torchbus_testing.forking import fork_script

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_default_dtype(torch.{dtype})
g = torch.Generator().manual_seed(1)
x, y = torch.randn(26, 6, generator=g), torch.randint(3, (26,), generator=g)
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.{optimizer}
{before}
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = {loss}
        loss.backward()
        optimizer.step()
    print(f"epoch {{epoch}} loss {{loss.item():.4f}}")
"""
NCE = "(lambda z: F.cross_entropy(z @ z.T, torch.arange(len(z))))(F.normalize(model(x), dim=1))"
HIDDEN = '''
class TokenMean(torch.autograd.Function):
    """A mean over the samples of the classes after the first, whose count the graph does not show."""
    @staticmethod
    def forward(ctx, losses, mask):
        ctx.save_for_backward(mask)
        return (losses * mask).sum() / mask.sum()
    @staticmethod
    def backward(ctx, grad):
        mask, = ctx.saved_tensors
        return grad * mask / mask.sum(), None
'''
TOKENS = (
    "TokenMean.apply(F.cross_entropy(model(x), y, reduction='none'), (y > 0).to(x.dtype) + 0.1)"
)


OWN_BATCHES = """
import random
import numpy
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(24, 6)
model = nn.Linear(6, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    chosen = {chosen}
    optimizer.zero_grad()
    model(x[chosen]).square().mean().backward()
    optimizer.step()
"""
CHOICES = {
    "random.sample": "random.sample(range(24), 6)",
    "random.choice": "[random.choice(range(24)) for _ in range(6)]",
    "numpy.random.choice": "numpy.random.choice(24, 6)",
    "numpy.random.permutation": "numpy.random.permutation(24)[:6]",
}


EVALUATED = """
model.eval()
with torch.no_grad():
    print("correct", sum(int((model(a).argmax(1) == b).sum()) for a, b in loader))
"""


def script(
    folder,
    loss="F.cross_entropy(model(x), y)",
    before="",
    dtype="float64",
    optimizer="SGD(model.parameters(), lr=0.1)",
):
    source = textwrap.dedent(SCRIPT).format(
        loss=loss, before=before, dtype=dtype, optimizer=optimizer
    )
    (folder / "train.py").write_text(source)
    return "train.py"


@pytest.mark.timeout(300)
def test_a_loss_between_samples_and_its_remedy(tmp_path):
    verdict = verified("--steps", "4", script(tmp_path, NCE), cwd=tmp_path)
    assert names(verdict) == (BETWEEN,) and verdict["status"] == 1
    assert "with strategy='dp' it is gone" in verdict["causes"][0]["found"]
    assert verified("--steps", "4", "--strategy", "dp", "train.py", cwd=tmp_path)["status"] == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_loss_by_tokens_that_the_graph_hides(tmp_path):
    verdict = verified("--steps", "4", script(tmp_path, TOKENS, HIDDEN), cwd=tmp_path)
    assert names(verdict) == (WEIGHTED,) and verdict["status"] == 2
    assert "s.backward_weight" in verdict["causes"][0]["remedy"]


SUMS_AND_COUNTS = {
    "a sum over samples with a constant factor, beside means": (
        "F.cross_entropy(model(x), y) + 0.01 * model(x).abs().sum()",
        "",
    ),
    "a divisor of 1 on a rank without anything to count": (
        "F.cross_entropy(model(x), y, reduction='sum') / max(1, int((y > 1).sum()))",
        "y = (torch.arange(26) % 5 == 0) * 2\nloader = DataLoader(TensorDataset(x, y), batch_size=6)",
    ),
}


CLIPPED = """
def clip(*_):
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
optimizer.register_step_pre_hook(clip)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cause", SUMS_AND_COUNTS)
def test_a_cause_that_the_session_has_asked_about(cause, tmp_path):
    verdict = verified("--steps", "4", script(tmp_path, *SUMS_AND_COUNTS[cause]), cwd=tmp_path)
    assert names(verdict) == (cause,) and verdict["status"] == 2
    assert "s.world_size" in verdict["causes"][0]["remedy"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sum_whose_gradients_are_clipped_is_named_by_its_loss(tmp_path):
    """The clipped gradients are those of the plain run, but for the clip's own 1e-6."""
    script(tmp_path, "F.cross_entropy(model(x), y, reduction='sum')", CLIPPED)
    words = ("--steps", "2", "--loss-reduction", "mean")
    verdict = verified(*words, "train.py", cwd=tmp_path)
    assert names(verdict) == (SUMMED,) and verdict["status"] == 2
    assert "the sum of the ranks' own losses" in verdict["causes"][0]["found"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--strategy", "fsdp"), marks=pytest.mark.slow),
        pytest.param(("--strategy", "ddp_sharded"), marks=pytest.mark.slow),
        pytest.param(("--strategy", "pipeline"), marks=pytest.mark.slow),
        pytest.param(
            ("--strategy", "tp", "--plan", "{'0': 'colwise', '2': 'rowwise'}"),
            marks=pytest.mark.slow,
        ),
        ("--accumulate-grad-batches", "2"),
        pytest.param(("--precision", "bf16-mixed"), marks=pytest.mark.slow),
        pytest.param(("--gradient-clip-val", "0.1"), marks=pytest.mark.slow),
        pytest.param(("--devices", "3"), marks=pytest.mark.slow),
        pytest.param(("--float64",), marks=pytest.mark.slow),
    ],
    ids=lambda words: "-".join(words).strip("-"),
)
def test_options(words, tmp_path):
    verdict = verified(*words, script(tmp_path, dtype="float32"), cwd=tmp_path)
    assert verdict["status"] == 0, verdict["headline"]
    assert (
        verdict["dtype"] == ("float64" if "--float64" in words else "float32")
        and verdict["largest"] > 0
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "draw",
    [
        one if one == "random.sample" else pytest.param(one, marks=pytest.mark.slow)
        for one in CHOICES
    ],
)
def test_batches_that_python_or_numpy_chooses(draw, tmp_path):
    (tmp_path / "train.py").write_text(OWN_BATCHES.format(chosen=CHOICES[draw]))
    verdict = verified("--steps", "4", "train.py", cwd=tmp_path)
    assert names(verdict) == (DRAWS,) and verdict["status"] == 1
    assert f"the first was {draw}" in verdict["causes"][0]["found"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rounding_that_the_loop_amplifies_goes_in_float64(tmp_path):
    """The bias shifts all logits alike, so its gradient is rounding, of which Adam makes whole
    steps.
    """
    before = "shift = nn.Parameter(torch.zeros(1)); model.register_parameter('shift', shift)\noptimizer.add_param_group({'params': [shift]})"
    loss = "F.cross_entropy(model(x) + model.shift, y)"
    adam = "Adam(model.parameters(), lr=0.1, eps=1e-12)"
    verdict = verified(
        script(tmp_path, loss, before, dtype="float32", optimizer=adam), cwd=tmp_path
    )
    assert verdict["status"] == 0, verdict["headline"]


@pytest.mark.timeout(300)
def test_evaluation_in_parts_is_named(tmp_path):
    script(tmp_path)
    with open(tmp_path / "train.py", "a") as file:
        file.write(EVALUATED)
    verdict = verified("--steps", "all", "--shard-eval", "True", "train.py", cwd=tmp_path)
    assert names(verdict) == ("evaluation divided",) and verdict["status"] == 1


@pytest.mark.timeout(300)
def test_what_is_not_deterministic_by_itself_is_said_first(tmp_path):
    before = "import os\nx = x + int.from_bytes(os.urandom(2), 'big') / 2**16\nloader = DataLoader(TensorDataset(x, y), 6)"
    verdict = verified("--steps", "2", script(tmp_path, before=before), cwd=tmp_path)
    assert verdict["status"] == 3
    assert (
        "not deterministic. Of two plain runs with the same seed, gradient of model.0.weight in step 1"
        in verdict["headline"]
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_in_a_test_of_a_user(tmp_path):
    script(tmp_path)
    source = """
        from torchbus_testing import verify
        verdict = verify("train.py", devices=2, steps=3)
        assert verdict.same and verdict.steps == 3 and not verdict.causes, str(verdict)
        print(verdict)
    """
    told = fork_script(source, cwd=tmp_path, timeout_s=200).ok().stdout
    assert told.startswith("the same numbers: 3 steps, 1 model, largest relative difference")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


ACCELERATE = """
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        pairs = [accelerator.gather_for_metrics((model(x), y)) for x, y in loader]
    accelerator.print(sum(len(y) for _, y in pairs), loss.item())
"""
FABRIC = """
    from lightning.fabric import Fabric
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    for number, (x, y) in enumerate(loader):
        with fabric.no_backward_sync(model, enabled=number % 2 == 0):
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss / 2)
        if number % 2:
            fabric.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            optimizer.zero_grad()
    fabric.print(loss.item())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(("library", "loop"), [("accelerate", ACCELERATE), ("lightning", FABRIC)])
def test_loops_of_other_libraries(tmp_path, strategy, library, loop):
    pytest.importorskip(library)
    name = script(tmp_path, dtype="float64")
    source = (tmp_path / name).read_text().partition("for epoch")[0] + textwrap.dedent(loop)
    (tmp_path / name).write_text(source)
    verdict = verified("--strategy", strategy, name, cwd=tmp_path)
    assert verdict["status"] == 0 and not verdict["causes"], verdict
