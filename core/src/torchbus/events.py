"""All events, in the order in which a loop fires them.

::

    with session(...) as s:                    # launch, session_start
        s.log_hyperparams(config)              # hyperparameters
        model = Net()
        optimizer = SGD(model.parameters())    # parameters_added
        for epoch in s.epochs(10):             # end_epochs
            model.train()                      # mode_changed
            for x, y in loader:                # skip_pass, loader_start, loader_opened, batches_skipped
                                               # loader_bypassed, of subclasses with an __iter__ of their own
                                               # batch_wanted, batch_ready (loader_length: len(loader))
                loss = criterion(model(x), y)  # model_found (once per model, before its first call); module_called
                optimizer.zero_grad()          # before_zero_grad
                loss.backward()                # before_backward, run_backward, backward_failed, after_backward
                clip_grad_norm_(...)           # skip_clipping, gradient_norm
                optimizer.step()               # step_called, before_optimizer_step, after_closure, after_optimizer_step
                s.log("loss", loss)            # skip_logging, log_metrics; metrics_ready, at log points
                                               # system_metrics, every few seconds, from a thread
                                               # loader_end, when the loader is exhausted
            mine = s.shard(my_own_batch)       # shard (with several ranks)
            scheduler.step(metric)             # skip_scheduler, scheduler_metric
        torch.save(model.state_dict(), path)   # save_file
        print(s.explain())                     # explain_lines, describe
                                               # session_end

A plugin is any object with methods of these names marked ``@torchbus.hookimpl``; it may take any subset of the
arguments. Every event fires on every rank unless it says otherwise. Events marked *hot* are called from a flat
tuple of functions compiled when the session starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader

    from torchbus._ranks.world import World
    from torchbus._seams.backward import BackwardCall
    from torchbus._seams.loader import LoaderIterator, Pass
    from torchbus._seams.optimizers.skipping import Answer
    from torchbus._session.context import Context

hookspec = pluggy.HookspecMarker("torchbus")
hookimpl = pluggy.HookimplMarker("torchbus")

HOT = (
    "batch_wanted", "batch_ready", "before_zero_grad", "before_backward", "run_backward", "backward_failed", "after_backward",
    "step_called", "before_optimizer_step", "after_closure", "after_optimizer_step", "skip_logging", "log_metrics",
)  # fmt: skip
ONE_LISTENER = ("run_backward",)  # whoever runs it runs all of it: of two, one would not be heard
RUN_THE_LOOPS_OWN_WORK = ("loader_start", "loader_bypassed", "save_file")  # their errors are the loop's, and pass as they are


@hookspec(firstresult=True)
def launch(session: Context) -> World | None:
    """Start or join the ranks. Once, first of all; only the strategy answers. Without an answer: one rank, and an error where
    the call of ``session`` or a launcher wants several."""


@hookspec
def session_start(session: Context) -> None:
    """The ranks are joined, no seam is installed yet. Once. Open files, process groups and threads here, and
    register their closing on ``session.on_close``, which runs whatever happens."""


@hookspec
def hyperparameters(values: dict[str, Any]) -> None:
    """``s.log_hyperparams`` was called: values as the user gave them. Once per call."""


@hookspec
def parameters_added(optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
    """An optimizer has got parameters: when it is made inside the block, at every ``add_param_group``, and at
    entry for an optimizer that the caller's variables name. ``optimizer`` is None for tensors given to ``s.adopt``."""


@hookspec(firstresult=True)
def end_epochs() -> bool | None:
    """``s.epochs`` is about to begin another epoch. True: the loop is over."""


@hookspec
def mode_changed(model: Module, training: bool) -> None:
    """``model.train()`` or ``model.eval()`` was called, and has done its work. Once per outermost call."""


@hookspec(firstresult=True)
def skip_pass(loader: DataLoader[Any]) -> bool | None:
    """A DataLoader is about to be iterated. True: this pass has no batches; nothing is drawn, no worker is started, and
    no other event of the pass is fired. Once per pass, before ``loader_start``."""


@hookspec(firstresult=True)
def loader_start(loader: DataLoader[Any]) -> Pass | None:
    """A DataLoader is about to be iterated. The attributes of the loader that a returned ``Pass`` names are replaced
    while the iterator of this pass is made. Once per pass over a loader."""


@hookspec
def loader_opened(loader: DataLoader[Any], iterator: LoaderIterator) -> None:
    """The iterator of this pass is made, its workers are started, no batch was taken yet. Once per pass."""


@hookspec
def batches_skipped(loader: DataLoader[Any], order: Pass | None, count: int) -> None:
    """``iterator.skip(count)`` went past so many batches, which the loop does not get. Once per call."""


@hookspec
def loader_bypassed(loader: DataLoader[Any]) -> None:
    """A subclass of DataLoader whose own ``__iter__`` does not come to DataLoader's has the first batch of a pass ready: no other event of
    the pass is fired. Once per pass."""


@hookspec
def batch_wanted(loader: DataLoader[Any], iterator: LoaderIterator) -> None:
    """*Hot.* The loop asks a captured loader for its next batch, or for its end: what it did with the batch before is done.
    Nothing was drawn or read for it in this process yet. Once per batch, and once more at the end."""


@hookspec
def batch_ready(loader: DataLoader[Any], batch: Any, order: Pass | None, iterator: LoaderIterator) -> Any:
    """*Hot.* A captured loader is about to hand a batch to the loop. Once per batch. A value that is not None
    replaces the batch for the next listener and for the loop. ``order`` is what ``loader_start`` returned, ``iterator``
    what the loop iterates: it counts."""


@hookspec(firstresult=True)
def loader_length(loader: DataLoader[Any]) -> int | None:
    """``len(loader)`` is asked for. A returned number of batches (of this rank) is the answer."""


@hookspec
def model_found(model: Module, calling: bool) -> None:
    """A module that nobody knew is about to run its first forward, or was named by a variable at entry. ``calling``: its
    forward has begun. Once per outermost module; discovery ends when ``session.end_discovery()`` is called."""


@hookspec
def module_called(module: Module, inputs: tuple[Any, ...]) -> None:
    """A module's ``forward`` is about to run with these positional arguments. At every call of every module, parts of
    models too, so for a few steps only: ``session.seams.retire("module_called")`` ends it."""


@hookspec
def before_zero_grad(optimizer: Optimizer) -> bool | None:
    """*Hot.* ``optimizer.zero_grad`` is about to run. Once per call. True: the listener has cleared every gradient of the
    optimizer, and torch has none left to look for."""


@hookspec
def before_backward(call: BackwardCall) -> None:
    """*Hot.* ``backward`` was called; once per call that is not nested in another one. The call's ``weight``,
    ``factor`` and ``sync`` may be set."""


@hookspec
def run_backward(call: BackwardCall, engine: Callable[..., None]) -> None:
    """*Hot.* Run the backward pass instead of torch: ``engine`` is torch's own ``autograd.backward``. At most one
    plugin (the strategy) implements it; a second one is an error. When it returns, gradients are final."""


@hookspec
def backward_failed(call: BackwardCall) -> None:
    """*Hot.* ``backward`` has raised, and the error is on its way to the loop, which may catch it: gradients may be there in
    part. Instead of ``after_backward``."""


@hookspec
def after_backward(call: BackwardCall) -> None:
    """*Hot.* Gradients are final and ``call.loss`` is what the loop will read. Once per ``before_backward``."""


@hookspec(firstresult=True)
def skip_clipping() -> bool | None:
    """``clip_grad_norm_`` or ``clip_grad_value_`` was called. True: it clips nothing (and returns the norm)."""


@hookspec
def gradient_norm(norm: Tensor) -> None:
    """``clip_grad_norm_`` has found this norm, before it clipped. Once per call."""


@hookspec
def step_called(optimizer: Optimizer, closure: Callable[[], Any] | None, run: Callable[..., Any]) -> Answer | None:
    """*Hot.* The loop has called ``optimizer.step``. The first listener that returns an ``Answer`` has dealt with it: by
    not stepping at all, or by calling the step itself: ``run(closure)``, or ``run()`` without one. ``closure`` is None where the loop gave
    none; what else it gave (a loss) goes to the step unseen. None of torch's step hooks has run yet."""


@hookspec
def before_optimizer_step(optimizer: Optimizer, closure: Callable[[], Any] | None) -> None:
    """*Hot.* ``optimizer.step`` is about to run; with a closure, before the closure is called. Once per step."""


@hookspec
def after_closure(optimizer: Optimizer) -> None:
    """*Hot.* The closure that the loop gave to ``optimizer.step`` has run inside it, and gradients are final. As often as
    the optimizer calls it."""


@hookspec
def after_optimizer_step(optimizer: Optimizer) -> None:
    """*Hot.* ``optimizer.step`` has run. Once per step."""


@hookspec(firstresult=True)
def skip_logging() -> bool | None:
    """*Hot.* ``s.log`` or ``s.log_dict`` was called. True: nothing is logged."""


@hookspec
def log_metrics(metrics: dict[str, Any], options: dict[str, Any]) -> None:
    """*Hot.* ``s.log`` or ``s.log_dict`` was called: values as the user gave them, and the keyword options of the call."""


@hookspec
def metrics_ready(metrics: dict[str, float], step: int, epoch: int | None, prog_bar: frozenset[str]) -> None:
    """A log point has been reached: plain numbers, reduced over ranks where that was asked for, by name. ``step`` is the
    number of real optimizer steps they belong to, ``epoch`` counts passes over the training loader from 0 (None before
    the first), ``prog_bar`` are the names that are meant for a progress bar. On every rank, from the loop's own thread;
    fired by torchbus-log. Loggers listen to this. The last ones come when the block has ended and the ranks have met, after
    ``session_end``: close on ``session.on_close``."""


@hookspec
def system_metrics(metrics: dict[str, float], time_s: float) -> None:
    """Measurements of this rank's machine (names with units), ``time_s`` seconds after the session began. Every few seconds,
    from a monitor's thread: nothing that takes long, and no collective."""


@hookspec
def loader_end(loader: DataLoader[Any], order: Pass | None) -> None:
    """A captured loader was exhausted (not after ``break``). Once per complete pass."""


@hookspec(firstresult=True)
def shard(value: Any, repeat: bool) -> Any:
    """``s.shard(value)`` was called with more than one rank: this rank's part of it (a tuple of them, for several values). ``repeat``: a
    rank that is left without an item gets one that it had, with weight 0."""


@hookspec(firstresult=True)
def skip_scheduler(scheduler: LRScheduler) -> bool | None:
    """The ``step`` of a learning-rate scheduler was called. True: nothing happens."""


@hookspec(firstresult=True)
def scheduler_metric(metric: Any) -> Any:
    """``ReduceLROnPlateau.step(metric)`` was called. A value that is not None replaces the metric."""


@hookspec(firstresult=True)
def save_file(path: str, write: Callable[[str], None]) -> bool | None:
    """``torch.save`` to a path was called; ``write(path)`` does it. True means that the listener has dealt with it."""


@hookspec
def explain_lines(session: Context) -> dict[str, list[str]] | None:
    """``s.explain()`` was called: lines to show, by section ("strategy", "notes", or one of the plugin's own)."""


@hookspec(firstresult=True)
def describe(thing: Module | Optimizer | DataLoader[Any]) -> str | None:
    """``s.explain()`` wants to say what is done to a model, an optimizer or a loader, and why: a few words."""


@hookspec
def session_end(session: Context, error: BaseException | None) -> None:
    """The block is left, with the exception that leaves it or None. Once; seams are still in place."""
