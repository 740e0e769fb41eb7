"""The engines that need options or several packages, and what each refuses of the kit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchbus_testing.conformance.subject import Subject

LIMIT_S = 240.0
"""Of a case, on a busy machine."""
NO_LAYERS = "is not an nn.Sequential, and has no nn.ModuleList or nn.Sequential of repeated blocks"
OF_PIPELINE = {
    "first-values": NO_LAYERS,
    "uneven-use": NO_LAYERS,
    "other-methods": NO_LAYERS,
    "shared-weights": "share a parameter, and would be on different ranks",
    "script-encoder-decoder": NO_LAYERS,
    "script-expert-routing": "before the last of the layers is called",
    "script-lbfgs-closure": "with LBFGS",
    "script-mnist-main": NO_LAYERS,
    "script-partial-optimizer": NO_LAYERS,
    "script-tied-weights": NO_LAYERS,
    "script-transfer-learning": NO_LAYERS,
    "script-unused-parameters": NO_LAYERS,
    "script-wgan-gp": "torch.autograd.grad through Sequential",
}
UNREACHED = "has no gradient in this step of"
LATE = "gets more parameters after its DeepSpeed engine was made"
OF_ZERO = {
    "kept-gradients": "would use gradients that its last step has used",
    "frozen": UNREACHED,
    "late-parameters": LATE,
    "script-expert-routing": UNREACHED,
    "script-lbfgs-closure": "with LBFGS",
    "script-transfer-learning": LATE,
    "script-unused-parameters": UNREACHED,
}
EMPTY = "parameters are empty outside of the forward of their own module"
OF_STAGE_3 = OF_ZERO | {
    "accumulate": "accumulate_grad_batches at stage 3",
    "error-in-forward": "read before this backward, and the session can't find out which of them",
    "other-methods": EMPTY,
    "script-expert-routing": "only some ranks' losses reach experts.0.weight",
    "script-partial-optimizer": "body.0.weight requires gradients, and RMSprop does not hold it",
}
PLAN: dict[str, Any] = {"plan": {"0": "colwise"}}


NO_MODULE = "plan: '0' matches no module of the models that are trained"
OF_PLAN = {
    "first-values": NO_MODULE,
    "uneven-use": NO_MODULE,
    "other-methods": NO_MODULE,
    "script-encoder-decoder": NO_MODULE,
    "script-expert-routing": NO_MODULE,
    "script-lbfgs-closure": "with LBFGS",
    "script-mnist-main": NO_MODULE,
    "script-partial-optimizer": NO_MODULE,
    "script-tied-weights": NO_MODULE,
    "script-transfer-learning": NO_MODULE,
    "script-unused-parameters": NO_MODULE,
    "script-wgan-gp": "torch.autograd.grad(create_graph=True) with divided layers",
}
UNEVEN = "ranks can't divide evenly"
OF_TP = OF_PLAN | {"checkpoint": UNEVEN}
OF_TP_OF_4 = OF_PLAN | {"script-grad-clipping": UNEVEN}
OF_FSDP_TP = OF_PLAN | {
    "other-methods": "mixes parts of parameters or gradients with whole tensors",
}


@dataclass(frozen=True)
class Engine:
    """``refused``: by rule, words of the message.

    ``diverges``: by rule, words of RanksDiverged. ``ranks``: how many there may be.
    """

    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    diverges: Mapping[str, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = (2, 3)

    @property
    def subject(self) -> Subject:
        return Subject(self.strategy, options=self.options)


def stage(number: int, refused: Mapping[str, str], **words: Any) -> Engine:
    return Engine(f"deepspeed_stage_{number}", refused=refused, **words)


ENGINES = {
    "deepspeed_stage_0": Engine("deepspeed", {"config": {"zero_optimization": {"stage": 0}}}),
    "deepspeed_stage_1": stage(1, OF_ZERO),
    "deepspeed_stage_2": stage(2, OF_ZERO),
    "deepspeed_stage_3": stage(
        3, OF_STAGE_3, diverges={"uneven-use": "waits in the forward of some"}
    ),
    "1f1b": Engine("pipeline", {"schedule": "1f1b"}, OF_PIPELINE),
    "tp": Engine("tp", PLAN, OF_TP, ranks=(2,)),  # whose checkpoint goes on with 3 ranks
    "tp of 4": Engine("tp", PLAN, OF_TP_OF_4, ranks=(4,)),
    "ddp+tp": Engine("ddp", {"tp": 2, **PLAN}, OF_PLAN, ranks=(4,)),
    "fsdp+tp": Engine("fsdp", {"tp": 2, **PLAN}, OF_FSDP_TP, ranks=(4,)),
}
