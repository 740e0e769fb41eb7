"""The guard of each rank: signals, failures of other ranks, ranks that wait for ever.

Runs in threads beside the loop, and ends collectives by closing this rank's own sockets.
"""
