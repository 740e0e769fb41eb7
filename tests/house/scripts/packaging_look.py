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
    s = session(name, strategy=None)
    plugins = dict(s._context.bus.plugins())
    made += [plugin for plugin in plugins if plugin == name]
    # some strategies refuse a single rank, and tensor_layers is nothing without tp=
    if name != "tensor_layers" and "strategy" not in getattr(plugins[name], "owns", ()):
        with s:
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
