"""At the end of the block all ranks get whole models and optimizers."""

from __future__ import annotations

from torch import Tensor
from torchbus.plugin import Context, Unsupported, hookimpl

from torchbus_launch.place import END
from torchbus_pipeline.meeting import Meeting
from torchbus_pipeline.model.models import Models
from torchbus_pipeline.states.modules import WholeModules
from torchbus_pipeline.states.optimizers import WholeOptimizers


class End:
    """Makes them whole, if the loop has ended without an error."""

    def __init__(
        self,
        session: Context,
        meeting: Meeting,
        models: Models,
        modules: WholeModules,
        optimizers: WholeOptimizers,
    ) -> None:
        self._session, self._meeting, self._models = session, meeting, models
        self._modules, self._optimizers = modules, optimizers

    @hookimpl(trylast=True)
    def session_end(self, error: BaseException | None) -> None:
        if error is not None:
            return refuse_gradient(error, self._models)
        self._meeting.meet("the end of the block")
        assert self._session.job is not None
        self._session.job.wait_in(END)
        self._optimizers.make_whole()
        self._modules.make_whole()


def refuse_gradient(error: BaseException, models: Models) -> None:
    """Raise Unsupported for an error of a loop that has used the ``grad`` of another rank's layer.

    That is None, as the values are elsewhere.
    """
    read_from_none = isinstance(error, AttributeError) and error.obj is None and any(models)
    if read_from_none and hasattr(Tensor, str(error.name)):  # type: ignore[attr-defined]
        raise Unsupported(
            f"p.grad is None (it has no {error.name!r}): under strategy='pipeline' a rank has the"  # type: ignore[attr-defined]
            " gradients of its own layers only. Use torch.nn.utils.clip_grad_norm_, whose result"
            " is the norm over all layers, or strategy='ddp'"
        ) from error
