"""The division of a batch's rows over the ranks of a team."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

from torch import Tensor, nn
from torch.nn import Module
from torchbus.plugin import UsageError
from torchbus.tree import leaves, map_leaves

from torchbus_ddp._compat import is_compiled
from torchbus_strategy.loss.of_parameters import may_be_of_parameters


def refuse_time_first(model: Module) -> None:
    """Raise UsageError for a model with a part that has time in dim 0.

    Divided there, it would compute something else without a message.
    """
    for path, module in model.named_modules():
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and not module.batch_first:
            place = f"{type(model).__name__}.{path}" if path else "the model"
            raise UsageError(
                f"strategy='dp': {place} ({type(module).__name__}) has batch_first=False, so time"
                " in dim 0 and the batch in dim 1: pass batch_dim=1, or batch_dim=0 if"
                f" {type(model).__name__}.forward takes the batch first"
            )


@contextmanager
def unbatched_calls(model: Module) -> Iterator[list[str]]:
    """Yield a list of the parts of ``model`` that are called with one sequence and no batch.

    Their dim 0 is time (torch.nn.LSTM, MultiheadAttention). A compiled model is not watched,
    because it would be compiled again.
    """
    found: list[str] = []

    def look(module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        first = next(iter((*args, *kwargs.values())), None)
        if isinstance(first, Tensor) and first.dim() == 2:
            found.append(type(module).__name__)

    watched = [] if is_compiled(model) else filter(_is_recurrent, model.modules())
    hooks = [one.register_forward_pre_hook(look, with_kwargs=True) for one in watched]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _is_recurrent(module: Module) -> bool:
    layers = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention | layers)


def number_left_in(model: Module, total: int) -> str | None:
    """Return the attribute in which a forward has left a number for all of its ``total`` samples.

    The loop may add it to its loss, as it does with the balance loss of a mixture of experts.
    """
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if any(_is_number_of_samples(leaf, total) for leaf in leaves(value)):
                return f"{path}.{name}" if path else name
    return None


def _is_number_of_samples(leaf: object, total: int) -> bool:
    """Whether a leaf is a number, or a vector without rows, that is not made of parameters only."""
    if not isinstance(leaf, Tensor) or leaf.grad_fn is None or leaf.dim() > 1:
        return False
    return total not in leaf.shape and not may_be_of_parameters(leaf.grad_fn)


AT_LEAST = 2


@dataclass(frozen=True)
class Rows:
    """How many samples each rank of a team has: ``samples``, rank 0 first.

    ``rank`` is this rank, which may have no samples. Each sample has ``each`` rows.
    """

    samples: tuple[int, ...]
    rank: int
    each: int = 1

    @property
    def total(self) -> int:
        """Number of samples."""
        return sum(self.samples)

    @property
    def sizes(self) -> list[int]:
        """The rows of each rank."""
        return [count * self.each for count in self.samples]

    @property
    def local(self) -> int:
        """The rows of this rank."""
        return self.sizes[self.rank]

    @property
    def weight(self) -> float:
        """This rank's fraction of all samples."""
        return self.samples[self.rank] / self.total

    @property
    def computed(self) -> int:
        """The number of rows that this rank computes.

        A rank without rows computes the first ones again, and the result is not used.
        """
        return self.local or min(AT_LEAST, self.total) * self.each

    @property
    def start(self) -> int:
        return sum(self.sizes[: self.rank]) if self.local else 0

    def take(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the rows of a tensor, in dimension ``dim``, that this rank computes, as a view."""
        return tensor.narrow(dim, self.start, self.computed)


def share_rows(total: int, team_size: int, rank: int) -> Rows:
    """Split the samples as evenly as possible; BatchNorm needs at least two on a rank.

    >>> share_rows(7, 3, 0).samples, share_rows(5, 3, 0).samples, share_rows(1, 2, 0).samples
    ((3, 2, 2), (3, 2, 0), (1, 0))
    """
    sharers = count_sharers(total, team_size)
    size, remaining = divmod(total, sharers)
    return Rows(
        tuple(size + (one < remaining) if one < sharers else 0 for one in range(team_size)), rank
    )


def count_sharers(total: int, team_size: int) -> int:
    """Return how many ranks get samples."""
    return min(team_size, max(1, total // AT_LEAST))


def count_samples(inputs: object, dim: int) -> int:
    """Return the size of the batch: that of the first tensor with dimension ``dim``, or 0."""
    return next((leaf.shape[dim] for leaf in numbers_in(inputs) if has_rows(leaf, dim)), 0)


def has_rows(leaf: object, dim: int) -> TypeGuard[Tensor]:
    """Whether ``leaf`` is a tensor that has this dimension."""
    return isinstance(leaf, Tensor) and leaf.dim() > dim


def lengths_of(leaf: object) -> Sequence[int]:
    """Return the shape of a tensor, or () for a number."""
    return tuple(leaf.shape) if isinstance(leaf, Tensor) else ()


Leaf = Tensor | float
T = TypeVar("T")


def map_numbers(value: T, change: Callable[[Leaf], Leaf]) -> T:
    """Return the same nesting, with every tensor and every ``float`` replaced, in order."""
    changed: T = map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, Leaf) else leaf)
    return changed


def numbers_in(value: object) -> list[Leaf]:
    """Return the tensors and floats of ``value``, in order."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Leaf)]
