"""Compression of deltas: sums over ranks that send numbers in half precision."""

from __future__ import annotations

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.exchange import EveryStep, Options
from pytagi_ddp.nn.core.arena import ParameterArena
from pytagi_ddp.nn.sequential import Sequential

DTYPES = ("float32", "float16", "bfloat16")


class HalfPrecision(EveryStep):
    """Deltas are added in every step, and sent in half precision (`DDPConfig.wire_dtype`)."""

    option = "wire_dtype other than 'float32'"

    def __init__(self, communicator: Communicator, model: Sequential, options: Options):
        super().__init__(communicator, model, options)
        if communicator.world_size > 1:  # a single rank sends nothing, and does not round
            half = HalfPrecisionSum(communicator, options.config.wire_dtype)
            self.reduce = lambda: half.reduce_deltas(model.arena)  # looked up in each call: `to_device` replaces it

    @classmethod
    def is_asked_for(cls, options: Options) -> bool:
        dtype = options.config.wire_dtype
        if dtype not in DTYPES:
            raise ValueError(f"wire_dtype must be one of {', '.join(map(repr, DTYPES))}, got {dtype!r}")
        if dtype != "float32" and (options.device != "cpu" or options.config.backend == "nccl"):
            raise ValueError(f"wire_dtype={dtype!r} is for networks on the CPU; on a GPU use 'float32'")
        return dtype != "float32"


class HalfPrecisionSum:
    """Adds float32 arrays of all ranks. Every number is sent with 16 bits, and added in float32.

    Each rank adds one part of the array: it receives that part from all ranks, and sends the sum to all. Every number
    is rounded twice, for any number of ranks. All ranks get the same bits. A rank sends 2 (R - 1)/R times 2 bytes for
    each number.

        "bfloat16":  8 significant bits, range of float32.
        "float16":   11 significant bits; each block of 1024 numbers is scaled by a power of two that brings its
                     largest to 2^14..2^15, so that numbers down to 2^-29 of it keep all bits and none overflows.
    """

    def __init__(self, communicator: Communicator, dtype: str):
        self._communicator = communicator
        self._codec = {"float16": _Float16, "bfloat16": _BFloat16}[dtype]()
        self._send: np.ndarray = np.empty(0, np.uint8)
        self._receive: np.ndarray = self._send

    def reduce_deltas(self, arena: ParameterArena) -> None:
        """Adds the deltas of all ranks. The counters at the end of the buffer are sent as float32."""
        self._communicator.all_reduce(arena.tail)
        for row in arena.delta:  # separately: deltas of means and of variances have different magnitudes
            self.all_reduce(row)

    def all_reduce(self, values: np.ndarray) -> None:
        """Replaces flat float32 `values` by their sum over all ranks; collective, of the same size on every rank."""
        ranks, rank, codec = self._communicator.world_size, self._communicator.rank, self._codec
        length = -(-values.size // (ranks * codec.block)) * codec.block
        shape = (ranks, codec.nbytes(length))
        if self._send.shape != shape:
            self._send, self._receive = np.zeros(shape, np.uint8), np.empty(shape, np.uint8)
            self._total, self._part = np.empty((2, length), np.float32)
        parts = [values[r * length : (r + 1) * length] for r in range(ranks)]
        for part, row in zip(parts, self._send, strict=True):
            codec.encode(part, row)
        self._communicator.all_to_all(self._send, self._receive)
        total, part = self._total[: parts[rank].size], self._part[: parts[rank].size]
        codec.decode(self._receive[0], total)
        for row in self._receive[1:]:
            codec.decode(row, part)
            total += part
        codec.encode(total, self._send[rank])
        self._communicator.all_gather(self._send[rank], self._receive)
        for part, row in zip(parts, self._receive, strict=True):
            codec.decode(row, part)


class _BFloat16:
    def __init__(self) -> None:
        from pytagi_ddp.kernels.cpu.layers import half_precision  # here: `import pytagi_ddp` does not load Numba

        self._kernels, self.block = half_precision, half_precision.BLOCK

    def nbytes(self, length: int) -> int:
        return 2 * length

    def encode(self, values: np.ndarray, row: np.ndarray) -> None:
        self._kernels.encode_bfloat16(values, row.view(np.uint16)[: values.size])

    def decode(self, row: np.ndarray, out: np.ndarray) -> None:
        self._kernels.decode_bfloat16(row.view(np.uint16)[: out.size], out)


class _Float16(_BFloat16):
    """Numbers, then the exponent of each block's scale."""

    def nbytes(self, length: int) -> int:
        return 2 * length + 4 * (length // self.block)

    def encode(self, values: np.ndarray, row: np.ndarray) -> None:
        self._kernels.encode_float16(values, *self._fields(row, values.size))

    def decode(self, row: np.ndarray, out: np.ndarray) -> None:
        self._kernels.decode_float16(*self._fields(row, out.size), out)

    def _fields(self, row: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        end = row.size // (2 * self.block + 4) * 2 * self.block
        return row[:end].view(np.uint16)[:size], row[end:].view(np.int32)[: -(-size // self.block)]
