"""The PTX lane: the CUDA kernels as they are compiled, run on the CPU, thread by thread and with every access checked.

NVVM's PTX is translated to C (`parse`, `translate`), compiled by gcc and launched (`machine`, `runtime.h`). A stand-in
for CuPy (`standin`) puts it where the driver would be: the library, and all tests of GPUs, run as they are.

    python -m pytest -p tests.cuda.ptx.plugin tests/cuda/sim tests/cuda/test_gpu.py     # any of them
    python -m pytest -m ptx                                                             # what the gate takes

What a launch does (multiply-adds, bytes) is counted without running it by `outline`: `benchmarks.step_counts` adds that
up over a training step, `benchmarks.gpu_launches --predict` makes a prediction of it.

Between ranks there is a stand-in for NCCL, carried by MPI, with a GPU on each rank (`ranks`, `test_nccl.py`). It is as
strict about streams and events as the machine is about threads: a collective, and other work that touches its memory,
need an event between them, and ranks whose collectives differ are told so.

Found are: accesses out of bounds or misaligned; reads of memory that nobody wrote; races in shared and global memory;
barriers, and instructions of a whole warp, that its threads do not reach together; asynchronous copies that are used
too soon; results that depend on the order of threads; barriers that keep nothing apart; variants of kernels that nobody
asks for; and code that the compiler made into something else than what the simulator runs.

Not modelled: time, the order of memory between blocks, rounding inside the tensor core (products are exact, their sum
is rounded once), the last bits of approximate instructions, several devices in one process, how NCCL adds (here: rank
by rank), registers, what the assembler does.
"""
