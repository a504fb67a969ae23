"""Layers, blocks of layers, and fused operations."""
