"""Checks the installed plugins."""

from __future__ import annotations

from torchbus._cli.doctor.finding import Finding
from torchbus._cli.fits import misfits
from torchbus._cli.installed import InstalledPlugin, installed_plugins


def look() -> list[Finding]:
    """Check that each plugin can be imported and fits this version of torchbus."""
    found = installed_plugins()
    facts = {plugin.name: f"{plugin.distribution} {plugin.version}" for plugin in found}
    return [
        Finding(
            "plugins",
            facts,
            [*misfits(), *(problem for plugin in found for problem in _problems(plugin))],
        )
    ]


def _problems(plugin: InstalledPlugin) -> list[str]:
    if plugin.error is not None:
        return [
            f"{plugin.error}. Install it again: pip install --force-reinstall --no-deps"
            f" {plugin.distribution}"
        ]
    return []
