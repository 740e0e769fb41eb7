"""``session(verify_every=N)``: rank 0 computes the gradients of all ranks, and says what differs."""

from __future__ import annotations

import pytest
from loop import Loop
from verify_every import LOOP, drifts, watched

from torchbus_testing.forking import fork_script

BROKEN = {
    "NotAveraged": "the gradient of model.0.weight differs by",
    "AveragedTwice": "being 0.5 times as large, and 5 other tensors too",
    "OneTensorLost": "the gradient of model.1.weight differs by 1, being 0 times as large",
}
"""A fault in the third backward, and what is said of it."""
END = """
states = [*model.state_dict().values(), *[v for one in optimizer.state.values() for v in one.values()]]
states += [torch.get_rng_state(), torch.tensor(numpy.random.rand(3)), torch.tensor(random.random())]
print(hashlib.sha256(b"".join(one.numpy().tobytes() for one in states)).hexdigest(), SCALE)
"""
SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**7, growth_interval=4)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        x = x + 0.01 * torch.tensor(numpy.random.rand(4)) + random.random()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
"""
SEEN = """
from torch.nn.modules import module
seen = []

class Look:
    @hookimpl
    def before_optimizer_step(self, optimizer):
        hooks = any(p._backward_hooks for p in model.parameters())
        seen.append([len(module._global_forward_hooks), hooks])
"""


def test_nothing_is_said_of_a_session_that_averages_as_it_should():
    result = watched(LOOP + "\nprint(s.explain())", ranks=3)
    assert drifts(result) == []
    told = " ".join(result.stdout.split())
    assert (
        "every 3 steps, rank 0 computes the gradients of all ranks: 2 backwards so far, the last in step 6; 0 drifted"
        in told
    )
    assert "not checked" not in told


@pytest.mark.parametrize("name", BROKEN)
def test_a_drift_is_told_with_step_and_tensor(name):
    (told,) = drifts(watched(plugin=f"ALL[{name!r}]()"))
    assert told.startswith("in step 3, the gradient of model.") and BROKEN[name] in told
    assert "The session does not apply the mean of the ranks' gradients" in told


def test_a_rank_that_computes_otherwise_is_named():
    """As a faulty device does: from the same inputs, other gradients."""
    faulty = """
        linear = nn.Linear.forward
        def forward(layer, x):
            return linear(layer, x) * (1 + 1e-6 * (s.rank == 1))
        nn.Linear.forward = forward
    """
    (told, *_) = drifts(watched(faulty + "\n        train()"))
    assert "in step 3, the gradient of model.0.weight differs by" in told
    assert "from what rank 0 computes of the same inputs (the part of rank 1)" in told


def test_the_end_is_bit_for_bit_the_same():
    """Random numbers, buffers, the scaler's factor: nothing is moved by a check in every step."""
    body = SCALED + END.replace("SCALE", "scaler.get_scale()")
    ends = {watched(body, options).ok().stdout for options in ("", "verify_every=1")}
    assert len(ends) == 1 and " 512.0" in ends.pop()


def test_the_other_steps_have_no_hook():
    result = watched("train()\nprint(seen)", "verify_every=5", plugin="Look()", before=SEEN)
    assert result.ok().stdout.split() == str([[int(step == 4), False] for step in range(9)]).split()


PENALTY = "train(loss=lambda x, y: F.cross_entropy(model(x), y) + 0.1 * sum(p.square().sum() for p in model.parameters()))"
SUBMODULES = "train(loss=lambda x, y: F.cross_entropy(model[4](torch.tanh(model[0](x))), y))"
COMMUNICATES = """
class Gathering(nn.Linear):
    def forward(self, x):
        s.reduce(1.0)
        return super().forward(x)
model[0].__class__ = Gathering
train()
"""
COUNTS = """
def count(module, inputs):
    module.calls = getattr(module, "calls", 0) + 1
    module.seen = [*getattr(module, "seen", []), len(inputs[0])]
model.register_forward_pre_hook(count)
train()
assert model.calls == len(model.seen) == 9
"""
UNUSUAL = {
    "penalty": (PENALTY, ""),
    "submodules": (SUBMODULES, ""),
    "communicates": (COMMUNICATES, "a model's forward communicates with other ranks"),
    "counts": (COUNTS, ""),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", UNUSUAL)
def test_loops_that_are_unusual_raise_no_false_alarm(name):
    body, not_checked = UNUSUAL[name]
    result = watched(body + "\nprint(s.explain())", "verify_every=1")
    assert drifts(result) == []
    assert ("not checked: " in result.stdout) is bool(not_checked) and not_checked in " ".join(
        result.stdout.split()
    )


ZOO = (
    "gan", "wgan_gp", "autoencoder_sum", "vae", "ignored_tokens", "zipped_loaders", "checkpointing",
    "checkpointing_reentrant", "retain_graph", "sparse_embedding", "lbfgs_closure", "own_autocast",
    "own_accumulation", "meta_learning", "dropout", "batch_norm", "backward_inputs", "tied_weights",
    "create_graph", "rnn_carried_hidden", "encoder_decoder", "unused_parameters", "expert_routing",
)  # fmt: skip
QUICK = ("ignored_tokens",)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in QUICK else [pytest.mark.slow]) for one in ZOO]
)
def test_loops_of_the_zoo_raise_no_false_alarm(name):
    options = (
        'verify_every=1, loss_reduction="sum"'
        if name in ("vae", "autoencoder_sum")
        else "verify_every=1"
    )
    body = f"""
        import runpy
        sys.argv = ["loop", "--batch-size", "4"]
        runpy.run_path({str(Loop(name).path)!r}, run_name="__main__")
    """
    assert drifts(watched(body, options)) == []


REFUSED = {
    'strategy="fsdp"': "verify_every=3 with strategy 'fsdp': only ddp's gradients can be compared in a running session",
    'strategy="dp"': "verify_every=3 with strategy 'dp'",
    'strategy="ddp", accumulate_grad_batches=2': "verify_every=3 with accumulate_grad_batches",
    'strategy="ddp", gradient_algorithm="fp16"': "verify_every=3 with gradient_algorithm='fp16'",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_can_not_be_checked_is_refused_before_the_loop(options):
    result = fork_script(
        f"""
        from torchbus import session
        with session({options}, devices=2, launch="fork", verify_every=3):
            print("begun")
        """
    )
    assert result.status and REFUSED[options] in result.stderr and "begun" not in result.stdout


@pytest.mark.parametrize(
    ("value", "words"), [("0", "must be 1 or more"), ("'often'", "a number of steps")]
)
def test_a_wrong_number_of_steps(value, words):
    result = fork_script(f"from torchbus import session\nsession(verify_every={value})")
    assert result.status and words in result.stderr
