"""From the words of ``session(...)`` to plugins that hear events.

The bus finds installed packages, checks options, registers plugins, and compiles the listeners of
each event. It touches neither torch nor the loop.
"""
