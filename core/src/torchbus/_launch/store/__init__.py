"""The key-value store of the job: where it listens, who may write to it, and who has said what.

Everything here is signed with the key of the job.
"""
