"""One synchronised backward: torch's reducer, driven without wrapping a module.

It may touch gradients and the reducer. The folder ``parameters`` knows which parameters there are.
"""
