"""The PTX lane: the CUDA kernels as they are compiled, run on the CPU, thread by thread and with every access checked.

NVVM's PTX is translated to C (`parse`, `translate`), compiled by gcc and launched (`machine`, `runtime.h`). A stand-in
for CuPy (`standin`) puts it where the driver would be: the library, and all tests of GPUs, run as they are.

    python -m pytest -p tests.cuda.ptx.plugin tests/cuda/sim tests/cuda/test_gpu.py     # any of them
    python -m pytest -m ptx                                                             # what the gate takes

What a launch does (multiply-adds, bytes) is counted without running it by `outline`: `benchmarks.step_counts` adds that
up over a training step, `benchmarks.gpu_launches --predict` makes a prediction of it.

Found are: accesses out of bounds or misaligned; reads of memory that nobody wrote; races in shared and global memory;
barriers, and instructions of a whole warp, that its threads do not reach together; asynchronous copies that are used
too soon; results that depend on the order of threads; and code that the compiler made into something else than what
the simulator runs.

Not modelled: time, the order of memory between blocks, rounding inside the tensor core (products are exact, their sum
is rounded once), the last bits of approximate instructions, several devices, NCCL, registers, what the assembler does.
"""
