"""The page of ``--html``: the difference of each tensor in each step, in one file that needs
nothing else.
"""
