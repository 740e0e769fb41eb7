"""``python -m torchbus``: runs the command line of the installed package that provides one."""

from torchbus.bus import discovery

if __name__ == "__main__":
    raise SystemExit(discovery.load(discovery.find("service", "command_line"))())
