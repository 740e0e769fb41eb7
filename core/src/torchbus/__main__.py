"""``python -m torchbus``: the command line of the package that brings one."""

from torchbus.bus import discovery

if __name__ == "__main__":
    raise SystemExit(discovery.load(discovery.find("service", "command_line"))())
