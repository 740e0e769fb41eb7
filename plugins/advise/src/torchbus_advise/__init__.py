"""torchbus-advise: which strategy a training script needs, found by running its first steps."""

from __future__ import annotations
