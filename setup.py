"""Builds the Cython modules. Everything else is declared in pyproject.toml."""

import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's clang has none: loops run on one thread
KERNELS, ENGINE = Path("pytagi_ddp/kernels/cpu"), Path("pytagi_ddp/distributed/engine")


class BuildKernels(build_ext):
    """Tunes for this machine's CPU only when the result stays on this machine (an in-place build)."""

    def run(self):
        if self.inplace or self.editable_mode:
            for ext in self.extensions:
                ext.extra_compile_args.append("-march=native")
        super().run()


def extension(source):
    return Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        depends=[str(path) for pattern in ("*.h", "*.pxd") for path in source.parent.glob(pattern)],
        include_dirs=[numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=["-O3", *OPENMP],
        extra_link_args=list(OPENMP),
    )


SOURCES = sorted([*KERNELS.glob("*.pyx"), *ENGINE.glob("*.pyx")])
setup(
    ext_modules=cythonize([extension(source) for source in SOURCES], language_level=3),
    cmdclass={"build_ext": BuildKernels},
)
