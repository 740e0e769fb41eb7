"""The guard of each rank: it watches for signals, failed ranks, and ranks that wait for ever.

It runs in threads beside the loop, and ends collectives by closing this rank's own sockets.
"""
