"""What the loop reads: loaders, passes over them, and wrappers that fetch ahead.

The modules here look at loaders and their iterators. They put back only random numbers.
"""
