"""The key-value store of the job: its address, its signatures, and its roll calls.

The ranks sign everything that they write here with the key of the job.
"""
