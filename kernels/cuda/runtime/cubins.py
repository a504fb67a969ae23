"""Cubins, the machine code of kernels: assembled from PTX by nvJitLink, and kept for later processes.

They are in the folder of `kernels.cpu.runtime.compile.cache_folder`, whose name depends on the sources.
"""

from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pytagi_ddp.files import atomic_write, check_private
from pytagi_ddp.kernels.checksummed import read_checksummed, with_checksum
from pytagi_ddp.kernels.cpu.runtime.compile import cache_folder


def assemble(ptx: str, name: str, capability: tuple[int, int]) -> tuple[bytes, str]:
    """(cubin, log) of the kernel `name` for a compute capability.

    Raises:
        RuntimeError: the error of the assembler.
    """
    from cuda.bindings import nvjitlink

    code = ptx.encode()
    handle = nvjitlink.create(2, ["-arch=sm_{}{}".format(*capability), "-verbose"])
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, code, len(code), name)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    except nvjitlink.nvJitLinkError as error:
        message = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, message)
        raise RuntimeError(f"{name}: {message.decode(errors='replace').strip()}") from error
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), log.decode(errors="replace").rstrip("\0")


@cache
def folder() -> Path | None:
    """The folder of cubins of this compiler and assembler, maybe read-only; None if there is none.

    A driver may not load cubins of the assembler of a later CUDA version.
    """
    base = cache_folder()
    if base is None:
        return None
    made = base / f"cuda-{version('numba-cuda')}-{version('cuda-bindings')}"
    try:
        made.mkdir(mode=0o700, exist_ok=True)
        check_private(made)
    except OSError:
        return None
    return made


def kept(file: str) -> bytes | None:
    """The cubin in this file of the folder; None if it is missing or damaged."""
    place = folder()
    return read_checksummed(place / file) if place else None


def keep(file: str, cubin: bytes) -> None:
    """Writes a cubin into this file of the folder, if there is one and it can be written."""
    if place := folder():
        with suppress(OSError):
            atomic_write(place / file, with_checksum(cubin), private=True)  # other ranks see the whole file or none
