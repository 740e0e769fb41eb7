"""The steps of one synchronised backward, and the header in which ranks tell each other numbers.

It may touch gradients. The folder ``parameters`` knows which parameters there are.
"""
