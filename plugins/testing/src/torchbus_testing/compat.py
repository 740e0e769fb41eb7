"""Private names of torch and CPython that the testing kit needs.

Those of torch were seen in 2.6 to 2.13, that of CPython in 3.10 to 3.13.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch.nn.modules import module
from torch.optim import optimizer

run_exit_functions: Callable[[], None] = atexit._run_exitfuncs
"""Without it: AttributeError in the testing kit."""
finalizers: Callable[[type], dict[Any, Any]] = attrgetter("_registry")
"""The live finalizers of ``weakref.finalize``. Without it: AttributeError in the testing kit."""
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
"""Tables that the testing kit compares before and after a session. Without one: AttributeError in
the testing kit.
"""
