"""torchbus-verify: checks with your script that N ranks compute what one process computes."""

from __future__ import annotations

from torchbus_verify.causes.cause import Cause
from torchbus_verify.compare.difference import Difference
from torchbus_verify.report import Verdict
from torchbus_verify.verifying import verify

__all__ = ["Cause", "Difference", "Verdict", "verify"]
