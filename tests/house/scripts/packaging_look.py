import json
import sys

import torchbus
from torchbus import session
from torchbus._bus import discovery

found = {
    kind: {name: entry.dist.name for name, entry in discovery.installed(kind).items()}
    for kind in discovery.KINDS
}
imported = sorted(name for name in sys.modules if name.startswith("torchbus_"))
made = []
for name in discovery.installed("plugin"):
    with session(name, strategy=None) as s:
        made += [plugin for plugin, _ in s._context.bus.plugins() if plugin == name]
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
