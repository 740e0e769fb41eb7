"""fsdp: tensors that an optimizer holds and no module owns."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"

TRAIN = (SCRIPTS / "loose_head.py").read_text()


def facts(body: str) -> dict[str, Any]:
    line = 'with session(strategy="fsdp", devices=2, launch="fork", accelerator="cpu") as s:'
    return fork_script(
        "\n".join([TRAIN, line, indent(body, "    "), "print(json.dumps(found))"])
    ).json()


def test_they_get_the_gradients_of_one_process() -> None:
    found = facts("""
found["ranks"] = s.all_gather_object(train(slice(4 * s.rank, 4 * s.rank + 4), s.adopt))
found["told"] = s.explain()
""")
    for rank in found["ranks"]:
        assert (
            max(abs(ours - alone) for ours, alone in zip(rank, found["alone"], strict=True)) < 1e-9
        )
    assert (
        "2 tensors that no module owns are whole on every rank, and averaged after each backward"
        in " ".join(found["told"].split())
    )


def test_gradients_that_the_loop_assigns_are_averaged_at_the_step() -> None:
    assert fork_script(SCRIPTS / "loose_assigned.py").json()["apart"] < 1e-9


def test_rank_0_has_their_first_values() -> None:
    found = facts("""
weight = (torch.ones(3) * s.rank).requires_grad_()
optimizer = torch.optim.SGD([*nn.Linear(3, 1).parameters(), weight], lr=0.1)
found["weights"] = s.all_gather_object(weight.tolist())
""")
    assert found["weights"] == [[0.0, 0.0, 0.0]] * 2
