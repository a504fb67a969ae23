"""What runs kernels on a GPU: compilation, cubins, arrays, instructions, recorded launches, and the simulator."""
