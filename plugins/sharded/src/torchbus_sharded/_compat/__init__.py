"""Private names of torch: nothing else in this package uses one.

Each says in which releases of torch it was seen, and what fails without it.
"""
