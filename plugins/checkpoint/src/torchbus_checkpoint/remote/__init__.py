"""Checkpoints in a folder at a URL: S3, Google Cloud, the Hugging Face hub.

fsspec reads and writes there.
"""
