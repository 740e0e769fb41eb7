"""The base of every strategy: synchronised backward passes that equal one process's.

``strategy.Strategy`` is the base class; ``backward`` runs and averages; ``loss`` finds what a loss
is a mean of; ``checks`` compares ranks; ``parameters`` holds what is trained; ``batches`` tracks
which batch feeds a backward; ``collectives`` and ``random_streams`` serve every plugin.
"""
