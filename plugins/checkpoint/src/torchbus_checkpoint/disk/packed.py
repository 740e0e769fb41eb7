"""Files of a rank on a host that does not see rank 0's folder.

The rank sends them to rank 0 in the message that it sends anyway.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

from torchbus_checkpoint.disk import folder, tensors
from torchbus_checkpoint.disk.formats import Entry

Sent = dict[str, Entry | str]
"""A rank's files by name: size and checksum of a written one, or the content of one in base64."""


def pack(content: object) -> str:
    """Return a file that this rank can't write, as text."""
    buffer = io.BytesIO()
    tensors.write(content, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def unpack(partial: Path, theirs: Sent) -> dict[str, Entry]:
    """Write the packed files of a rank. Return sizes and checksums of all its files.

    Raises OSError.
    """
    return {
        name: (
            folder.write_file(partial, name, base64.b64decode(one)) if isinstance(one, str) else one
        )
        for name, one in theirs.items()
    }
