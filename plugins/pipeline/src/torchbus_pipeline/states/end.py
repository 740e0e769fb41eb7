"""At the end of the block all ranks get whole models and optimizers."""

from __future__ import annotations

from torchbus.plugin import END, Context, hookimpl

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
            return
        self._meeting.meet("the end of the block")
        assert self._session.job is not None
        self._session.job.wait_in(END)
        self._optimizers.make_whole()
        self._modules.make_whole()
