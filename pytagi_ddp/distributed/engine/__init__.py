"""Communicators and their MPI job: how ranks connect, communicate, wait and end."""
