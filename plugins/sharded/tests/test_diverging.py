"""Ranks that go different ways after the first steps, where backward is compared at its end alone,
end in an error that says where each is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

LOOP = (SCRIPTS / "diverging.py").read_text()
FORWARD = "the forward of Net, model 1 (training), after 12 optimizer steps"
CALL = "a call of Net"
WAIT = "deadlock: the ranks wait for each other in different places: "
PLACES = "the ranks are at different places of the loop: "
ENDED = "rank 1 ended its loop after 12 backward calls, while "
DIVERGING = {  # what is done after twelve good steps, and what is said
    "a backward that one rank leaves out": (
        "loss = net(x).mean(); loss.backward() if s.rank == 0 else None",
        (WAIT, "rank 0 waits in backward 13", f"rank 1 waits in {FORWARD}"),
    ),
    "a backward that one rank makes twice": (
        "loss = net(x).mean(); loss.backward(retain_graph=True); loss.backward() if s.rank == 0 else None",
        (WAIT, "rank 0 waits in backward 14", f"rank 1 waits in {CALL}"),
    ),
    "a forward of another model": (
        "net(x) if s.rank == 0 else other(x)",
        (WAIT, f"rank 0 waits in {CALL}", f"rank 1 waits in {FORWARD}".replace("1 (", "2 (")),
    ),
    "a forward too many": (
        "net(x) if s.rank == 0 else None",
        (WAIT, f"rank 0 waits in {FORWARD}", "rank 1 waits in backward 13"),
    ),
    "a loop that one rank leaves": (
        "if s.rank == 1: break",
        (ENDED, f"rank 0 waits in {CALL}"),
    ),
    "a loop that one rank leaves between forward and backward": (
        "loss = net(x).mean()\n            if s.rank == 1: break\n            loss.backward()",
        (ENDED, "rank 0 waits in backward 13"),
    ),
    "a number that one rank reduces while the other is in backward": (
        "loss = net(x).mean(); loss.backward() if s.rank == 0 else s.reduce(torch.tensor(1.0))",
        (WAIT, "rank 0 waits in backward 13", "rank 1 waits in s.reduce"),
    ),
    "a number that one rank reduces before backward and one after": (
        "loss = net(x).mean(); s.reduce(torch.tensor(1.0)) if s.rank else 0; loss.backward(); 0 if s.rank else s.reduce(torch.tensor(1.0))",
        (WAIT, "rank 0 waits in backward 13", "rank 1 waits in s.reduce"),
    ),
    "a step of an optimizer that one rank leaves out": (
        "net(x).mean().backward(); optimizer.step() if s.rank else None",
        (PLACES, "rank 0 at the end of backward 14", "rank 1 at the end of backward 14"),
    ),
    "objects that one rank gathers": (
        "s.all_gather_object(1) if s.rank == 0 else None",
        (WAIT, "rank 0 waits in s.all_gather_object", f"rank 1 waits in {CALL}"),
    ),
    "tensors that one rank gathers": (
        "s.all_gather(x) if s.rank == 0 else None",
        (WAIT, "rank 0 waits in s.all_gather", f"rank 1 waits in {CALL}"),
    ),
    "a larger model that one rank calls": (
        "big(x) if s.rank == 0 else None",
        (WAIT, "rank 0 waits in the forward of Linear", f"rank 1 waits in {CALL}"),
    ),
}
QUICK = list(DIVERGING)[:1]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in DIVERGING],
)
def test_it_ends_in_an_error_that_names_the_places(case):
    odd, words = DIVERGING[case]
    result = fork_script(LOOP.replace("pass  # odd", odd)).ok(1)
    assert "trained to the end" not in result.stdout
    assert all(word in result.stderr for word in words), result.stderr


SWAPPED = SCRIPTS / "diverging_swapped.py"


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("held", "loss"), [("", "torch.ones(1, requires_grad=True).sum()"), (", scale", "scale * 2")]
)
def test_numbers_are_not_added_to_what_another_rank_s_backward_sends(held, loss):
    """To a loss, say, or to the gradient of a tensor that no module owns: there gloo would see
    nothing wrong.
    """
    result = fork_script(SWAPPED, held, loss).ok(1)
    assert "went on" not in result.stdout
    assert all(word in result.stderr for word in (WAIT, "waits in backward 6")), result.stderr
