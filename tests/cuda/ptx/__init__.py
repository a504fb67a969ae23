"""Runs CUDA kernels as they were compiled, but on the CPU: thread by thread, and with every access to memory checked.

So errors of kernels are found without a GPU. NVVM compiles a kernel to PTX, the assembly language of GPUs. `parse` and
`translate` turn that into C, gcc compiles it, and `machine` and `runtime.h` launch it. A stand-in for CuPy (`standin`)
takes the place of the real one: the library, and all tests of GPUs, run as they are.

    python -m pytest -p tests.cuda.ptx.plugin tests/cuda/sim tests/cuda/test_gpu.py     # any tests of GPUs
    python -m pytest -m ptx                                                             # what `make test` runs

`outline` counts what a launch does (multiply-adds, bytes) without running it: `benchmarks.step_counts` adds that up
over a training step, and `benchmarks.gpu_launches --predict` predicts times from it.

For several ranks there is a stand-in for NCCL, which sends data by MPI and gives each rank a GPU (`ranks`,
`test_nccl.py`). It is as strict about streams and events as the machine is about threads: it is an error if a
collective, and other work on the same memory, have no event between them, or if ranks call different collectives.

What is found: accesses out of bounds or misaligned; reads of memory that nobody wrote; races in shared and global
memory; barriers, and instructions of a whole warp, that not all of its threads reach together; asynchronous copies that
are used too soon; results that depend on the order of threads; barriers that are not needed; variants of kernels that
no test runs; and code that computes something else than the simulator does.

What is not modelled: time; the order of memory accesses between blocks; rounding inside the tensor core (products are
exact, and their sum is rounded once); the last bits of approximate instructions; several devices in one process; the
order in which NCCL adds (here it is that of the ranks); registers; and what the assembler does.
"""
