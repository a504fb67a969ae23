"""Builds the Cython kernels. Everything else is declared in pyproject.toml."""

import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's clang has none: loops run on one thread
KERNELS = Path("pytagi_ddp/kernels/cpu")


class BuildKernels(build_ext):
    """Tunes for this machine's CPU only when the result stays on this machine (an in-place build)."""

    def run(self):
        if self.inplace or self.editable_mode:
            for ext in self.extensions:
                ext.extra_compile_args.append("-march=native")
        super().run()


def extension(source):
    return Extension(
        f"pytagi_ddp.kernels.cpu.{source.stem}",
        [str(source)],
        depends=[*map(str, KERNELS.glob("*.h")), *map(str, KERNELS.glob("*.pxd"))],
        extra_compile_args=["-O3", *OPENMP],
        extra_link_args=list(OPENMP),
    )


setup(
    ext_modules=cythonize([extension(source) for source in sorted(KERNELS.glob("*.pyx"))], language_level=3),
    cmdclass={"build_ext": BuildKernels},
)
