"""The verbs of this repository's packages, for type checkers and editors. Nothing imports it.

Written by core/generate.py from the packages: change those, and run it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch.optim import Optimizer
from torch.profiler import record_function
from torch.utils.data import DataLoader

from torchbus_profile.result import Profiled
from torchbus_scale.rates import LearningRates
from torchbus_throughput.meter import Window

Result = TypeVar("Result")
Thing = TypeVar("Thing")


class KnownVerbs:
    """What ``s.`` has beside the session's own methods."""

    @contextmanager
    def toggle(self, optimizer: Optimizer, sync_grad: bool = True) -> Iterator[None]:
        """Inside, the parameters of all other optimizers require no gradients.

        With ``sync_grad=False``, backwards do not communicate either, and all ranks must enter it.
        At the end, each parameter's ``requires_grad`` is restored. Raises UsageError for an
        optimizer that the session does not know.
        """
        raise NotImplementedError

    def no_sync(self) -> AbstractContextManager[None]:
        """Backwards inside do not communicate. All ranks must enter it.

        The next backward outside, or ``optimizer.step``, averages the accumulated gradients.

        Source: ``no_sync`` of torch's DistributedDataParallel.
        """
        raise NotImplementedError

    def accumulating(self, more_to_come: bool = True) -> AbstractContextManager[None]:
        """For a loop that accumulates gradients itself: ``with s.accumulating((i + 1) % 4 != 0):``.

        This is ``no_sync()`` if there is ``more_to_come``: for all batches but the last one of each
        window. All ranks must enter it.
        """
        raise NotImplementedError

    @property
    def is_last_batch(self) -> bool:
        """Whether the present batch is the last one of this pass over its loader. Any rank may ask.

        Raises UsageError if no loader is being iterated, or if it has no length.
        """
        raise NotImplementedError

    def backward_weight(self, count: float) -> None:
        """Say that the next loss is a mean over ``count`` things (tokens) on this rank.

        ``count`` is a number or a tensor with one element, 0 or more. It weights the gradients over
        ranks and over the batches of a window. All ranks must call this. Raises UsageError for
        another value.
        """

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, replace all weights by their averages, whatever mode the models are in.

        Buffers that change inside, as by ``torch.optim.swa_utils.update_bn``, are restored at the
        end. Before the first average it changes nothing. Any rank may call it; under fsdp all ranks
        must call it, as they call forward. Raises UsageError if nothing is averaged.
        """
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint to a folder with this path.

        All ranks must call this, at the end of a batch or an epoch. Raises UsageError for a URL,
        and CheckpointError if the checkpoint would not be complete or can't be written.
        """

    def load(self, path: str | os.PathLike[str] | None) -> None:
        """Restore a checkpoint. All ranks must call this.

        Before the first step of this session, this also restores the position of the loop, by
        replay. Until the next step, the session then writes no checkpoint. A trial run
        (``fast_dev_run``) has no checkpoints, so it ignores None. Raises UsageError for None
        otherwise, for a URL, and during a resume, and CheckpointError for a checkpoint that is
        damaged or belongs to another loop.
        """

    def register(self, name: str, thing: Thing) -> Thing:
        """Put an object with ``state_dict`` and ``load_state_dict`` into every checkpoint.

        Register the object on all ranks, because each loads rank 0's state. Returns the object.
        Raises UsageError for an object without these methods, and for a name in use.
        """
        raise NotImplementedError

    def epochs(self, count: int) -> Iterator[int]:
        """Iterate over ``range(count)`` in the outermost loop, from where an interrupted run was.

        An "epoch" may be a single step. All ranks must run the loop. Raises UsageError if ``count``
        is not an int.
        """
        raise NotImplementedError

    def save_and_leave(self) -> None:
        """Request that all ranks save at their next common step boundary and exit, as SIGUSR1 does.

        One rank is enough. It may call this in any thread, at any time, and repeatedly. Raises
        UsageError if the option ``checkpoint`` is not set.
        """

    @property
    def gradient_norm(self) -> torch.Tensor | None:
        """The norm of the gradients at the last step before clipping, a 0-dim tensor.

        It is None before the first step, and with "value". Any rank may read it.
        """
        raise NotImplementedError

    @property
    def should_stop(self) -> bool:
        """Whether the loop should end."""
        raise NotImplementedError

    def log(
        self,
        name: str,
        value: object,
        *,
        on_step: bool | None = ...,
        on_epoch: bool = ...,
        sync_dist: bool | None = ...,
        reduce: Literal["mean", "sum", "max", "min"] = ...,
        batch_size: float | None = ...,
        prog_bar: bool = ...,
        step: int | None = ...,
    ) -> None:
        """Log one value: a number, a tensor of one element on any device, a torchmetrics object.

        Options: ``on_step=True, on_epoch=False, sync_dist=None, reduce="mean", batch_size=None,
        prog_bar=False, step=None``. All ranks must log values that are reduced over ranks, in the
        same order; any rank may log others. Raises UsageError for other values and options.
        """

    def log_dict(
        self,
        metrics: Mapping[str, object],
        *,
        on_step: bool | None = ...,
        on_epoch: bool = ...,
        sync_dist: bool | None = ...,
        reduce: Literal["mean", "sum", "max", "min"] = ...,
        batch_size: float | None = ...,
        prog_bar: bool = ...,
        step: int | None = ...,
    ) -> None:
        """Log several values by name, with the options of ``log``, on the same ranks.

        Raises UsageError if ``metrics`` is not a mapping.
        """

    def logged(self, name: str) -> float:
        """Return the last value that was logged by this name, as loggers get it.

        A value of ``on_epoch`` or ``sync_dist`` is reduced over ranks, so it is equal on all. It is
        complete when the pass over the loader has ended. All ranks must call this. While a resumed
        run is replayed, it returns NaN. Raises UsageError for a name without a value, and without a
        logger for a name that nothing monitors.
        """
        raise NotImplementedError

    def log_hyperparams(self, values: object = None, **more: object) -> None:
        """Pass the run's settings to the loggers. All ranks must call this.

        Pass a mapping, an ``argparse.Namespace``, a dataclass, or keywords.
        """

    def log_image(self, name: str, image: object, *, step: int | None = None) -> None:
        """Log a picture. The loggers of rank 0 get it at once. Other ranks may call this, too.

        ``image`` is a tensor (height, width) or (channels, height, width), or a NumPy array or PIL
        image (height, width) or (height, width, channels), with 1, 3 or 4 channels. Floats are in
        [0, 1], integers uint8. Rank 0 waits for the device. Raises UsageError for other images.
        """

    def log_histogram(
        self,
        name: str,
        values: object,
        *,
        bins: int = 64,
        step: int | None = None,
    ) -> None:
        """Log how the values of a tensor or an array are distributed, at once.

        ``values`` are real numbers of any shape and dtype, and ``bins`` is the number of equal
        bins. Rank 0 counts only its values, on their device, and waits for it. A DTensor is
        gathered, so all ranks must call this for it. Raises UsageError for other values.
        """

    def range(self, name: str) -> record_function:
        """Name a part of the loop for all profilers: ``with s.range("augment"):``.

        It may also decorate a function. Any rank may call it. The printed tables list the ranges of
        the recorded steps. Raises UsageError if the name is not a text.

        Source: https://pytorch.org/docs/stable/generated/torch.autograd.profiler.record_function.html
        """
        raise NotImplementedError

    def profiled(self) -> Profiled | None:
        """Return the result of this rank's last recording, or None before its end.

        Any rank may call it.
        """
        raise NotImplementedError

    def shard(self, *values: Any, repeat: bool = False) -> Any:
        """Return this rank's part of a batch, or of a series of them, that the script makes itself.

        Of a tensor, several (``x, y = s.shard(x, y)``), or a nesting of them, all with the same dim
        0, each rank gets a contiguous share of dim 0. Of a range, a list or another iterable, each
        rank gets every world_size-th item, and no two ranks get the same. Gradients of the next
        ``backward`` are weighted accordingly. ``repeat=True`` is for training: a rank without an
        item at the end repeats one, with weight 0. All ranks must call it.
        """
        raise NotImplementedError

    @property
    def effective_batch_size(self) -> int:
        """The number of samples in one real step: batch x ranks x accumulation.

        Any rank may read it. Raises UsageError if no DataLoader with a ``batch_size`` exists.
        """
        raise NotImplementedError

    def find_batch_size(self, function: Callable[[int], object], start: int = 128) -> int:
        """Return the first batch size, in samples per rank, that fits in memory on every rank.

        It tries ``start``, and then smaller sizes. ``function`` gets a size, and makes a forward
        and a backward, which does not communicate. Clear the gradients afterwards. All ranks call
        it. With several ranks it needs torchbus-accumulate. Raises UsageError if accelerate is not
        installed, if ``start`` is not a number of samples, or, with several ranks, if ``function``
        steps an optimizer.

        Source: ``accelerate.utils.find_executable_batch_size``, whose sizes it tries.
        """
        raise NotImplementedError

    def find_lr(
        self,
        function: Callable[[object], object],
        optimizer: Optimizer,
        loader: DataLoader[object],
        *,
        min_lr: float = 1e-07,
        max_lr: float = 10.0,
        steps: int = 100,
    ) -> LearningRates:
        """Run the learning-rate range test: a real step at each rate, in increasing order.

        ``function`` does what the loop does with one batch, with forward, backward and
        ``optimizer.step()``, and returns the loss. Other groups keep their ratio to the first one.
        The test stops once the smoothed loss exceeds four times its best. Afterwards, and after an
        error, these are restored bit for bit: models, optimizers, scalers, random numbers, and the
        generators of the loader. All ranks call it.

        Raises:
            UsageError: the rates, the number of steps or the function are invalid, or a window of
                accumulation is open.

        Source: Smith, Cyclical Learning Rates for Training Neural Networks, 2017,
        https://arxiv.org/abs/1506.01186
        """
        raise NotImplementedError

    def main_first(self, local: bool = False) -> AbstractContextManager[None]:
        """Let rank 0 run the block first. The other ranks run it when rank 0 has finished.

        Use it for what one rank downloads or prepares, and the others then find:
        ``with s.main_first():``. With ``local=True`` the first rank of each node goes first, for
        files on a disk of the node. An error of the first rank is raised on all ranks. All ranks
        must enter the block. Raises UsageError for a function, which ``s.once`` calls.
        """
        raise NotImplementedError

    def once(self, key: str, function: Callable[[], Result]) -> Result:
        """Return on all ranks what ``function`` returns on rank 0, which alone calls it.

        Later calls with the same ``key`` return the same result and call nothing. The other ranks
        get a copy, by pickle. An error of the function is raised on all ranks, which must all call
        it.
        """
        raise NotImplementedError

    def on_main(self, function: Callable[..., Result]) -> Callable[..., Result | None]:
        """Let only rank 0 run a function: a decorator, or ``s.on_main(upload)(path)``.

        On other ranks the function returns None at once. It must not call what all ranks have to
        call, such as ``s.reduce`` or ``backward``.
        """
        raise NotImplementedError

    @contextmanager
    def split_between_processes(self, items: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Give this rank a consecutive part of some items, for inference.

        Write ``with s.split_between_processes(prompts) as mine:``. ``items`` is a list, a tuple, a
        range, a tensor or an array, a map-style data set, or a dict of these with the same length.
        If they can't be divided evenly, the first ranks get one more. With ``apply_padding``, the
        other ranks repeat the last item, so that all have the same number. ``s.gather_in_order``
        puts the results together, without padding. No rank sends anything. Raises UsageError for
        other items.

        Source: ``split_between_processes`` of Accelerate.
        """
        raise NotImplementedError

    def gather_in_order(self, results: Any) -> Any:
        """Return, on all ranks, the results of all items in the items' order.

        ``results`` is a list with one result for each item that this rank got from the last
        ``s.split_between_processes``, or a tensor with a row for each. Results of padding are left
        out. Results in a list are pickled. Under options that shorten passes, such as
        ``fast_dev_run``, each rank may have the results of its first items only. All ranks call it.
        Raises UsageError, on all ranks, if the ranks have split different items, or a rank has
        another number of results.
        """
        raise NotImplementedError

    def throughput(self) -> Window | None:
        """Return the rates of the last window of ``throughput_every`` steps, of all ranks together.

        It is None before the end of the first one. Any rank may call it, whatever others do. On an
        accelerator it is the last window but one, whose time is known.
        """
        raise NotImplementedError
