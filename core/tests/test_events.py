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
from torchbus import Session, events, hookimpl, session
from torchbus._seams.loader import Pass
from torchbus.testing import ALL_EVENTS, Recorder

IN_FILE = [name for name, value in vars(events).items() if hasattr(value, "torchbus_spec")]
NOT_IN_A_LOOP = {
    "after_closure", "backward_failed", "loader_length", "shard", "hyperparameters", "metrics_ready", "system_metrics", "end_epochs",
    "batches_skipped", "loader_bypassed",
}  # a closure, an error, len(loader), several ranks, what other packages send


def documented() -> list[str]:
    """Event names of the pseudocode, in reading order."""
    pseudocode = inspect.getdoc(events).split("A plugin is")[0]
    comments = [line.split("#", 1)[1] for line in pseudocode.splitlines() if "#" in line]
    return [word for comment in comments for word in re.findall(r"[a-z_]+", comment) if word in ALL_EVENTS]


def test_the_file_is_in_the_order_of_its_pseudocode():
    assert documented() == IN_FILE


@pytest.mark.parametrize("name", IN_FILE)
def test_an_event_is_documented_and_typed(name):
    function = getattr(events, name)
    assert len(inspect.getdoc(function)) > 40
    annotations = function.__annotations__
    assert "return" in annotations and set(inspect.signature(function).parameters) == set(annotations) - {"return"}


def test_the_file_imports_no_torch_at_run_time():
    source = Path(events.__file__).read_text()
    program = f"import sys; exec({source!r}, {{'__name__': 'events'}}); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


class Engine:
    """Runs backward, as a strategy does."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    @hookimpl
    def run_backward(self, call, engine):
        self._names.append("run_backward")
        engine(call.tensors, call.grad_tensors, call.retain_graph, call.create_graph, inputs=call.inputs)


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
    per_step = ["batch_ready", "before_backward", "run_backward", "after_backward", "before_optimizer_step", "after_optimizer_step", "log_metrics"]
    assert {name: fired.count(name) for name in per_step} == dict.fromkeys(per_step, 4)
    per_epoch = ["mode_changed", "loader_start", "loader_opened", "loader_end", "scheduler_metric"]
    assert {name: fired.count(name) for name in per_epoch} == dict.fromkeys(per_epoch, 2)
    once = ["launch", "session_start", "parameters_added", "model_found", "save_file", "explain_lines", "session_end"]
    assert {name: fired.count(name) for name in once} == dict.fromkeys(once, 1)


def test_a_step_fires_the_documented_order(fired):
    second_batch = [index for index, name in enumerate(fired) if name == "batch_ready"][1]
    third = fired[second_batch:]
    assert third[: third.index("loader_end") + 2] == [
        "batch_ready", *["module_called"] * 3, "before_zero_grad", "before_backward", "run_backward", "after_backward", "skip_clipping",
        "gradient_norm", "step_called", "before_optimizer_step", "after_optimizer_step", "skip_logging", "log_metrics", "batch_wanted",
        "loader_end", "skip_scheduler",
    ]  # fmt: skip


def test_a_loader_left_by_break_has_no_end():
    recorder = Recorder("loader_start", "batch_ready", "loader_end")
    loader = DataLoader(torch.arange(4))
    with session(recorder, strategy=None):
        for _ in loader:
            break
        assert recorder.names == ["loader_start", "batch_ready"]


def test_len_of_a_loader_can_be_answered():
    class Half:
        @hookimpl
        def loader_length(self, loader):
            return len(loader.dataset) // 2

    loader = DataLoader(torch.arange(4))
    with session(Half(), strategy=None):
        assert len(loader) == 2
    assert len(loader) == 4


def test_returned_values_replace():
    class Doubler:
        @hookimpl
        def batch_ready(self, batch):
            return batch * 2

        @hookimpl
        def loader_start(self):
            return Pass(batch_sampler=[[3], [1]])

        @hookimpl
        def scheduler_metric(self, metric):
            return metric / 2

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    loader = DataLoader(torch.arange(4))
    with session(Doubler(), strategy=None):
        assert [batch.item() for batch in loader] == [6, 2]
        scheduler.step(5.0)
    assert scheduler.best == 2.5
    assert [batch.item() for batch in loader] == [0, 1, 2, 3]


def test_events_at_entry_name_what_the_caller_has():
    heard = []

    class Listener:
        @hookimpl
        def model_found(self, model):
            heard.append(model)

        @hookimpl
        def parameters_added(self, optimizer, parameters):
            heard.append((optimizer, len(parameters)))

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session(Listener(), strategy=None):
        assert heard == [model, (optimizer, 2)]
        model(torch.ones(1, 2))
        new = torch.zeros(2, requires_grad=True)
        optimizer.add_param_group({"params": [new]})
    assert [entry for entry in heard if isinstance(entry, tuple)] == [(optimizer, 2), (optimizer, 1)]


def test_a_backward_that_raises_is_told():
    recorder = Recorder("before_backward", "backward_failed", "after_backward")
    with session(recorder, strategy=None):
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(()).backward()
        torch.ones((), requires_grad=True).backward()
    assert recorder.names == ["before_backward", "backward_failed", "before_backward", "after_backward"]


def test_gradients_that_a_listener_has_cleared_are_not_looked_for():
    class Keeper:
        @hookimpl
        def before_zero_grad(self, optimizer):
            return optimizer is kept

    kept, other = (torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1) for _ in range(2))
    with session(Keeper(), strategy=None):
        for optimizer in (kept, other):
            optimizer.param_groups[0]["params"][0].sum().backward()
            optimizer.zero_grad()
    assert [optimizer.param_groups[0]["params"][0].grad is None for optimizer in (kept, other)] == [False, True]


def test_session_end_hears_the_error():
    heard = []

    class Listener:
        @hookimpl
        def session_end(self, error):
            heard.append(error)

    error = ValueError("boom")
    with pytest.raises(ValueError, match="boom"), session(Listener(), strategy=None):
        raise error
    assert heard == [error]
