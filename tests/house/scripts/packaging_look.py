import contextlib
import json
import sys

import torchbus
from torchbus import session
from torchbus.bus import discovery
from torchbus.errors import UsageError

found = {
    kind: {name: entry.dist.name for name, entry in discovery.installed(kind).items()}
    for kind in discovery.KINDS
}
imported = sorted(name for name in sys.modules if name.startswith("torchbus_"))
made = []
for name in discovery.installed("plugin"):
    s = session(name, strategy=None)
    made += [plugin for plugin, _ in s._context.bus.plugins() if plugin == name]
    with contextlib.suppress(UsageError), s:  # one rank, or no tp=, is what some refuse
        pass
print(
    json.dumps(
        {
            "found": found,
            "imported": imported,
            "made": made,
            "version": torchbus.__version__,
            "file": torchbus.__file__,
        }
    )
)
