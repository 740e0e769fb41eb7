"""Private names of torch and CPython: nothing else in the core uses one.

Each says in which releases of torch it was seen, and what fails without it. A function that is gone
raises UsageError when it is used; ``torchbus._compat.required`` asks for the others.
"""
