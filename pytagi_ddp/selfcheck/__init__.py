"""Examples that run every kernel of a GPU, and the comparison with the CPU: `python -m pytagi_ddp.doctor --gpu`."""
