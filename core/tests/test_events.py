"""The event file is in loop order, its pseudocode says so, and a real loop fires them so."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import events, session
from torchbus.bus.base import hookimpl
from torchbus.session import Session

from torchbus_testing.recorder import ALL_EVENTS, Recorder

IN_FILE = [name for name, value in vars(events).items() if hasattr(value, "torchbus_spec")]
NOT_IN_A_LOOP = {
    "backward_failed",
    "step_failed",
    "loader_length",
    "batches_skipped",
    "loader_bypassed",
    "init_process_group",
    "parameters_may_differ",
    "own_tensors",
    "clip_gradient_values",
}  # an error, len(loader), what strategies with several ranks send


def documented() -> list[str]:
    """Event names of the pseudocode, in reading order."""
    pseudocode = inspect.getdoc(events).split("A plugin is")[0]
    comments = [line.split("#", 1)[1] for line in pseudocode.splitlines() if "#" in line]
    return [
        word
        for comment in comments
        for word in re.findall(r"[a-z_]+", comment)
        if word in ALL_EVENTS
    ]


def test_the_file_is_in_the_order_of_its_pseudocode():
    assert documented() == IN_FILE


@pytest.mark.parametrize("name", IN_FILE)
def test_an_event_is_documented_and_typed(name):
    function = getattr(events, name)
    assert len(inspect.getdoc(function)) > 40
    annotations = function.__annotations__
    assert "return" in annotations and set(inspect.signature(function).parameters) == set(
        annotations
    ) - {"return"}


def test_the_file_imports_no_torch_at_run_time():
    source = Path(events.__file__).read_text()
    program = (
        f"import sys; exec({source!r}, {{'__name__': 'events'}}); print('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
        == "False\n"
    )


class Engine:
    """Runs backward, as a strategy does."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    @hookimpl
    def run_backward(self, call, engine):
        self._names.append("run_backward")
        engine(
            call.tensors,
            call.grad_tensors,
            call.retain_graph,
            call.create_graph,
            inputs=call.inputs,
        )


def train(s: Session, folder: Path, epochs: int) -> None:
    """The loop of the pseudocode."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    loader = DataLoader(TensorDataset(torch.randn(4, 3), torch.randn(4, 1)), batch_size=2)
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            s.log("loss", loss)
        scheduler.step(loss.item())
    torch.save(model.state_dict(), folder / "model.pt")
    s.explain()


@pytest.fixture
def fired(tmp_path) -> list[str]:
    """What two epochs of two batches fire."""
    recorder = Recorder()
    with session(recorder, Engine(recorder.names), strategy=None) as s:
        train(s, tmp_path, epochs=2)
    return recorder.names


def test_a_loop_fires_the_documented_order(fired):
    first_times = list(dict.fromkeys(fired))
    assert first_times == [name for name in documented() if name not in NOT_IN_A_LOOP]


def test_how_often_each_fires(fired):
    per_step = [
        "batch_ready",
        "before_backward",
        "run_backward",
        "after_backward",
        "before_optimizer_step",
        "after_optimizer_step",
    ]
    assert {name: fired.count(name) for name in per_step} == dict.fromkeys(per_step, 4)
    per_epoch = ["mode_changed", "loader_start", "loader_opened", "loader_end", "scheduler_metric"]
    assert {name: fired.count(name) for name in per_epoch} == dict.fromkeys(per_epoch, 2)
    once = [
        "launch",
        "session_start",
        "parameters_added",
        "model_found",
        "save_file",
        "explain_lines",
        "session_end",
    ]
    assert {name: fired.count(name) for name in once} == dict.fromkeys(once, 1)


def test_a_step_fires_the_documented_order(fired):
    second_batch = [index for index, name in enumerate(fired) if name == "batch_ready"][1]
    third = fired[second_batch:]
    assert third[: third.index("loader_end") + 2] == [
        "batch_ready",
        *["module_called"] * 3,
        "before_zero_grad",
        "gradients_cleared",
        "before_backward",
        "run_backward",
        "after_backward",
        "clip_gradients",
        "gradient_norm",
        "step_called",
        "before_optimizer_step",
        "gradients_ready",
        "after_optimizer_step",
        "batch_wanted",
        "loader_end",
        "skip_scheduler",
    ]
