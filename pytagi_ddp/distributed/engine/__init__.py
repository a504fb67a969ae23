"""Communicators and their MPI job: how ranks find each other, communicate, wait and end together."""
