"""What the options may be."""

from __future__ import annotations

from typing import Any

import pytest
from torchbus import session
from torchbus.errors import UsageError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"precision": "fp16-mixed"},
            "'32-true', '64-true', '16-mixed', 'bf16-mixed', '16-true', 'bf16-true', 'fp8'",
        ),
        ({"precision": 16}, "precision=16 is unknown: here it is called '16-mixed'"),
        ({"precision": "bf16"}, "precision='bf16' is unknown: here it is called 'bf16-mixed'"),
        ({"precision": "8"}, "precision='8' is unknown: use one of '32-true', '64-true', "),
        ({"precision": "16-mixed", "amp_backend": "apex"}, "no longer maintained"),
        ({"amp_backend": "other"}, "use 'native'"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(**options)
