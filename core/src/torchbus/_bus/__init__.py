"""From the words of ``session(...)`` to plugins that hear events.

Finds installed packages, checks options, registers plugins, and compiles the listeners of each event.
Touches neither torch nor the loop.
"""
