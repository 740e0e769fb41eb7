"""``fork_script`` of a process that has imported what each session of DeepSpeed imports."""

from __future__ import annotations

import functools

from torchbus_testing import forking

fork_script = functools.partial(
    forking.fork_script, preloaded=("deepspeed", "torch._inductor.compile_fx")
)
