"""Threads, compilation and its cache, arrays, and recorded calls and their replay."""
