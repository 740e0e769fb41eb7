"""Modules, their global hooks, and torch's compiler.

All were seen in 2.6 to 2.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from types import CodeType
from typing import Any

from torch import _guards
from torch.nn import Module
from torch.nn.modules import module
from torch.optim import optimizer

children: Callable[[Module], dict[str, Module | None]] = attrgetter("_modules")
"""By name. Without it: AttributeError when models are looked for."""

detect_fake_mode: Callable[[], object] = _guards.detect_fake_mode
"""The mode in which torch traces a model, None outside. Without it: AttributeError at
``import torchbus``.
"""

CALL: CodeType = Module._wrapped_call_impl.__code__
"""What calls a module's forward. Without it: AttributeError at ``import torchbus``."""

COMPILER = "torch._dynamo.eval_frame"
"""Loaded once somebody compiles. Without it: ImportError at the first ``torch.compile``."""

HOOK_TABLES: dict[str, dict[Any, Any]] = {
    "module forward hooks": module._global_forward_hooks,
    "module forward pre-hooks": module._global_forward_pre_hooks,
    "module backward hooks": module._global_backward_hooks,
    "module backward pre-hooks": module._global_backward_pre_hooks,
    "module registration hooks": module._global_module_registration_hooks,
    "parameter registration hooks": module._global_parameter_registration_hooks,
    "buffer registration hooks": module._global_buffer_registration_hooks,
    "optimizer step pre-hooks": optimizer._global_optimizer_pre_hooks,
    "optimizer step post-hooks": optimizer._global_optimizer_post_hooks,
}
"""What ``torchbus.testing`` compares before and after a session. Without one: AttributeError at
``import torchbus``.
"""


def compiler() -> tuple[list[Any], type[Module]]:
    """What torch's compiler calls when it starts, and the class of what it makes.

    Loading it takes a second. Without one: AttributeError at the first ``torch.compile``.
    """
    import torch._dynamo as dynamo
    from torch._dynamo.eval_frame import OptimizedModule

    return dynamo.callback.callback_handler.start_callbacks, OptimizedModule


def forget_replaced() -> None:
    """Let torch's compiler look again at what functions torch has. It remembers them for good as it
    first saw them, with those of a session in some places, and whatever these hold.

    Without ``trace_rules`` or ``clear_lru_cache``: nothing.
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    getattr(rules, "clear_lru_cache", lambda: None)()
