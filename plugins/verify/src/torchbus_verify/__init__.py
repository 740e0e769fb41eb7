"""torchbus-verify: checks with your script that N ranks compute what one process computes."""

from __future__ import annotations

from torchbus_verify.api import verify
from torchbus_verify.causes.cause import Cause
from torchbus_verify.compare.difference import Difference
from torchbus_verify.report import Verdict

__all__ = ["Cause", "Difference", "Verdict", "verify"]
