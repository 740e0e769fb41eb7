"""All events, in the order in which a loop fires them.

::

    with session(...) as s:                    # launch, session_start
                                               # init_process_group, parameters_may_differ
        s.log_hyperparams(config)              # hyperparameters
        model = Net()
        optimizer = SGD(model.parameters())    # own_tensors, parameters_added
        s.load(path)                           # before_restore, also when a run resumes
                                               # put_gradients
        for epoch in s.epochs(10):             # end_epochs
            model.train()                      # mode_changed
            for x, y in loader:                # skip_pass, optimizer_ready
                                               # loader_start, loader_opened
                                               # batches_skipped, loader_bypassed
                                               # batch_wanted, batch_ready
                                               # len(loader): loader_length
                loss = criterion(model(x), y)  # model_found, once per model; module_called
                optimizer.zero_grad()          # before_zero_grad, gradients_cleared
                loss.backward()                # before_backward, run_backward
                                               # backward_failed or after_backward
                clip_grad_norm_(...)           # clip_gradients, clip_gradient_values
                                               # gradient_norm
                optimizer.step()               # step_called, before_optimizer_step
                                               # gradients_ready
                                               # step_failed or after_optimizer_step
                s.log("loss", loss)            # skip_logging, log_metrics
                                               # metrics_ready, at log points
                                               # system_metrics, every few seconds
                                               # loader_end, when the loader is exhausted
            scheduler.step(metric)             # skip_scheduler, scheduler_metric
        torch.save(model.state_dict(), path)   # save_file
        s.save(path)                           # whole_gradients
        print(s.explain())                     # explain_lines, describe, whole_shape
                                               # session_end

A plugin is any object with methods of these names, marked ``@torchbus.hookimpl``. A method may take
any subset of the arguments. Every rank sends every event, unless the event says otherwise. *Hot*
events are called from a flat tuple of functions.

Order: listeners marked ``tryfirst=True`` are called first, and those marked ``trylast=True`` last.
The last ones are called in the order of their registration, all others in the opposite order.
Functions of ``s.on(...)`` are called after all plugins. ``session.bus.order(event)`` returns the
names of the listeners in their order.

Filters: ``every=50`` calls a listener at the 50th, 100th, ... firing, ``once=True`` only at the
first of these, and ``main_only=True`` only on rank 0. Checkpoints store the counts by plugin name.

Steps: ``s.global_step`` is the number of finished steps. So is ``session.steps.count``, after
``session.steps.follow()``. The step in progress has the next number, and is counted just before
``after_optimizer_step``. Optimizers that step in turn, as in a GAN, make one step together, until
the loop creates another optimizer.

Names: ``s.name_of(thing)`` returns the name of an event's argument: the variable of a model,
optimizer or loader, and the path of a layer or parameter, such as "net.0.weight".
``session.names_of(things)`` returns many names at once.

Some of these events are declared by other packages. If a plugin must also work without that
package, mark its listener ``hookimpl(optionalhook=True)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from torch import Size, Tensor
    from torch.distributed import Store
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader

    from torchbus.patches.backward import BackwardCall
    from torchbus.patches.loaders import LoaderIterator, LoaderPass
    from torchbus.patches.skipping import Answer
    from torchbus.runtime.context import Context
    from torchbus.world import World


hookspec = pluggy.HookspecMarker("torchbus")

HOT = (
    "batch_wanted",
    "batch_ready",
    "before_zero_grad",
    "gradients_cleared",
    "before_backward",
    "run_backward",
    "backward_failed",
    "after_backward",
    "step_called",
    "before_optimizer_step",
    "gradients_ready",
    "step_failed",
    "after_optimizer_step",
)
ONE_LISTENER = ("run_backward",)  # the first listener does all the work: others would not be called
CALLED_ALONE = ("session_end",)  # an error in one listener does not stop the others
# an error here may come from the loop, so it is raised without the plugin's name
RUN_THE_SCRIPTS_WORK = ("loader_start", "loader_bypassed", "save_file")


@hookspec(firstresult=True)
def launch(session: Context) -> World | None:
    """Start or join the ranks.

    Sent once, before all other events. Only the strategy answers. Without an answer there is one
    rank, and a call that asks for several raises an error.
    """


@hookspec
def session_start(session: Context) -> None:
    """The ranks have joined each other.

    No patch is installed yet. Sent once. Open files, process groups and threads here, and register
    their closing on ``session.on_close``.
    """


@hookspec(firstresult=True)
def init_process_group(
    session: Context, backend: str, store: Store, timeout: timedelta
) -> bool | None:
    """Make torch's default process group (Lightning's ``init_ddp_connection``).

    The strategy sends it once per session, and again if a stranger is connected to the group.
    Return True if you have made it.
    """


@hookspec(firstresult=True)
def parameters_may_differ(session: Context) -> bool | None:
    """Return True if ranks step independently for a while, as in local SGD.

    The strategy asks a few times when the session starts. Without an answer, a parameter that
    differs is an error.
    """


@hookspec
def own_tensors(optimizer: Optimizer, tensors: list[Tensor]) -> None:
    """Some of an optimizer's tensors have a row in dim 0 for each of this rank's samples.

    An example is a perturbation of the batch. Such tensors differ between ranks, which exchange
    nothing for them. The strategy sends the event before other plugins get ``parameters_added``.
    """


@hookspec
def parameters_added(optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
    """An optimizer has got parameters.

    Sent when an optimizer is made inside the block, at every ``add_param_group``, and at entry for
    each optimizer that a variable of the caller names. ``optimizer`` is None for tensors given to
    ``s.adopt``. A strategy that replaces parameters does so first, also in ``parameters``.
    """


@hookspec
def mode_changed(model: Module, training: bool) -> None:
    """``model.train()`` or ``model.eval()`` was called, and has done its work.

    Sent once per outermost call.
    """


@hookspec(firstresult=True)
def skip_pass(loader: DataLoader[object]) -> bool | None:
    """The loop is about to iterate a DataLoader. True: this pass has no batches.

    No other event of such a pass is sent. Sent once per pass, before ``loader_start``.
    """


@hookspec
def optimizer_ready(optimizer: Optimizer) -> None:
    """An optimizer is complete, with all its groups.

    Sent once per optimizer, when the loop next iterates a loader, runs a new model, or calls
    ``zero_grad``, ``backward`` or ``step``. A group that is added later fires only
    ``parameters_added``.
    """


@hookspec(firstresult=True)
def loader_start(loader: DataLoader[object]) -> LoaderPass | None:
    """The loop is about to iterate a DataLoader.

    A returned ``LoaderPass`` names attributes of the loader, which are replaced while the iterator
    of this pass is made. Sent once per pass.
    """


@hookspec
def loader_opened(loader: DataLoader[object], iterator: LoaderIterator) -> None:
    """The iterator of this pass is made and its workers are started. No batch was taken yet.

    A listener may set ``iterator.limit``, after which number of batches the pass ends. Sent once
    per pass.
    """


@hookspec
def batches_skipped(loader: DataLoader[object], order: LoaderPass | None, count: int) -> None:
    """``iterator.skip(count)`` has skipped ``count`` batches, which the loop does not get.

    Sent once per call. Also sent with ``count=0`` for a whole pass that an earlier run trained on.
    """


@hookspec
def loader_bypassed(loader: DataLoader[object]) -> None:
    """A subclass of DataLoader that has its own ``__iter__`` has the first batch of a pass ready.

    Its ``__iter__`` does not call DataLoader's, so no other event of the pass is sent. Sent once
    per pass.
    """


@hookspec
def batch_wanted(loader: DataLoader[object], iterator: LoaderIterator) -> None:
    """*Hot.* The loop asks a captured loader for its next batch, or for its end.

    The loop has finished with the previous batch. Nothing has been drawn or read for the next one
    yet. Sent once per batch, and a last time at the end.
    """


@hookspec
def batch_ready(
    loader: DataLoader[object], batch: object, order: LoaderPass | None, iterator: LoaderIterator
) -> object:
    """*Hot.* A captured loader is about to hand a batch to the loop.

    A value that is not None replaces the batch for the next listener and for the loop. ``order`` is
    what ``loader_start`` returned. ``iterator`` is the object that the loop iterates; it counts the
    batches. Sent once per batch.
    """


@hookspec(firstresult=True)
def loader_length(loader: DataLoader[object], whole: Callable[[], int]) -> int | None:
    """The script asks for ``len(loader)``. A returned number of batches (of this rank) is the
    answer.

    ``whole()`` is torch's own answer. It raises TypeError if the loader has no length.
    """


@hookspec
def model_found(model: Module, calling: bool) -> None:
    """A module that the session did not know is about to run its first forward.

    At entry, the event is sent for each module that a variable names. ``calling`` is True if the
    forward has begun. Sent once per outermost module, until ``session.end_discovery()``.
    """


@hookspec
def module_called(module: Module, inputs: tuple[object, ...]) -> None:
    """A module's ``forward`` is about to run with these positional arguments.

    Sent at every call of every module, parts of models included. Listen for a few steps only:
    ``session.seams.retire("module_called")`` stops the event.
    """


@hookspec
def before_zero_grad(optimizer: Optimizer) -> bool | None:
    """*Hot.* ``optimizer.zero_grad`` is about to run.

    True: the listener has cleared every gradient of the optimizer. It may store them elsewhere for
    the rest of an accumulation window. Sent once per call.
    """


@hookspec
def gradients_cleared(optimizer: Optimizer, kept: bool) -> None:
    """*Hot.* ``optimizer.zero_grad`` has run.

    ``kept`` is True if a listener returned True for ``before_zero_grad``, because a window is open.
    Otherwise, an engine with gradients outside of ``parameter.grad`` clears them here.
    """


@hookspec
def before_backward(call: BackwardCall) -> None:
    """*Hot.* The loop has called ``backward``.

    A listener may set the call's ``weight``, ``factor`` and ``sync``. Sent once per call that is
    not nested in another one.
    """


@hookspec
def run_backward(call: BackwardCall, engine: Callable[..., None]) -> None:
    """*Hot.* Run the backward pass instead of torch. Gradients are final when this returns.

    ``engine`` is torch's own ``autograd.backward``. At most one plugin (the strategy) listens to
    this event. A second listener is an error.
    """


@hookspec
def backward_failed(call: BackwardCall) -> None:
    """*Hot.* ``backward`` has raised, and the loop may catch the error.

    Some gradients may have been computed. Sent instead of ``after_backward``.
    """


@hookspec
def after_backward(call: BackwardCall) -> None:
    """*Hot.* Gradients are final, and ``call.loss`` is what the loop will read.

    Sent once per ``before_backward``.
    """


@hookspec(firstresult=True)
def clip_gradients(
    parameters: list[Tensor], max_norm: float, norm_type: float, run: Callable[[float], Tensor]
) -> Tensor | None:
    """The loop has called ``clip_grad_norm_``, and gets a returned norm (a tensor without
    dimensions, of the gradients' dtype) as its result.

    A listener that returns a norm must have clipped the gradients. ``run(max_norm)`` does what
    torch does, and returns the norm; ``run(math.inf)`` clips nothing.
    """


@hookspec(firstresult=True)
def clip_gradient_values(parameters: list[Tensor], clip_value: float) -> bool | None:
    """The loop has called ``clip_grad_value_``. True: the listener has clipped the gradients."""


@hookspec
def gradient_norm(norm: Tensor) -> None:
    """``clip_grad_norm_`` is over; the loop gets ``norm``, of no dimension. Sent once per call."""


@hookspec
def step_called(
    optimizer: Optimizer, closure: Callable[[], object] | None, run: Callable[..., object]
) -> Answer | None:
    """*Hot.* The loop has called ``optimizer.step``. None of torch's step hooks has run yet.

    The first listener that returns an ``Answer`` handles the call. It either skips the step, or
    makes it by ``run(closure)``, or by ``run()`` without a closure. ``closure`` is None if the loop
    passed none.
    """


@hookspec
def before_optimizer_step(optimizer: Optimizer, closure: Callable[[], object] | None) -> None:
    """*Hot.* ``optimizer.step`` is about to run. A closure has not been called yet.

    Sent once per step.
    """


@hookspec
def gradients_ready(optimizer: Optimizer, closure: Callable[[], object] | None) -> None:
    """*Hot.* ``optimizer.step`` is about to use the gradients. ``trylast=True`` gets final ones.

    Without a closure it is sent once per step, after ``before_optimizer_step``. With a closure it
    is sent inside the step, each time after the optimizer has called the closure.
    """


@hookspec
def step_failed(optimizer: Optimizer) -> None:
    """*Hot.* ``optimizer.step`` has raised, and the loop may catch the error.

    Sent instead of ``after_optimizer_step``.
    """


@hookspec
def after_optimizer_step(optimizer: Optimizer) -> None:
    """*Hot.* ``optimizer.step`` has run. Sent once per step."""


@hookspec
def loader_end(loader: DataLoader[object], order: LoaderPass | None) -> None:
    """The loop has exhausted a captured loader.

    Sent once per complete pass, not after ``break``.
    """


@hookspec(firstresult=True)
def skip_scheduler(scheduler: LRScheduler) -> bool | None:
    """The loop has called ``step`` of a learning-rate scheduler. True: the step is skipped."""


@hookspec(firstresult=True)
def scheduler_metric(metric: object) -> object:
    """The loop has called ``ReduceLROnPlateau.step(metric)``.

    A value that is not None replaces the metric.
    """


@hookspec(firstresult=True)
def save_file(path: str, write: Callable[[str], None]) -> bool | None:
    """The script has called ``torch.save`` with a path; ``write(path)`` does the work.

    True: the listener has handled the call.
    """


@hookspec
def explain_lines(session: Context) -> dict[str, list[str]] | None:
    """``s.explain()`` asks for lines to show.

    Return them by section: "strategy", "notes", or a section of the plugin.
    """


@hookspec(firstresult=True)
def describe(thing: Module | Optimizer | DataLoader[object]) -> str | None:
    """``s.explain()`` asks what the plugin does to a model, optimizer or loader, and why."""


@hookspec(firstresult=True)
def whole_shape(parameter: Tensor) -> Size | None:
    """Something asks for the shape of a parameter: ``s.explain()``, a checkpoint.

    Answer if this rank holds only a part of the parameter, in a tensor of another shape. A DTensor
    needs no answer: its shape is the whole one.
    """


@hookspec
def session_end(session: Context, error: BaseException | None) -> None:
    """The loop leaves the block, with the exception that leaves it or None.

    Patches are still active. Sent once, to each plugin separately: a listener can't be a wrapper.
    """
