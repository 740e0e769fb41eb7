"""Checkpoints in a folder at a URL: S3, Google Cloud, the Hugging Face hub.

The modules here read and write through fsspec.
"""
