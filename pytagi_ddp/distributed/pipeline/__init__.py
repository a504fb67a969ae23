"""Pipelines: a network cut into stages over ranks."""
