"""Pipelines: a network divided into stages over ranks."""
