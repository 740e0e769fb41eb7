"""One synchronised backward: torch's reducer, driven without wrapping a module, and what ranks tell each other on the way.

May touch gradients and the reducer. Which parameters there are, ``parameters`` knows.
"""
