"""Builds the Cython modules. Everything else is declared in pyproject.toml.

With PYTAGI_DDP_SANITIZE=1 they are built to find errors of memory: indices are checked, and AddressSanitizer looks at
every access (see CONTRIBUTING.md).
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

if sys.platform == "win32":
    sys.exit(
        "pytagi_ddp does not work on Windows: its C code needs gcc or clang, and it starts and ends ranks by means of "
        "POSIX; install it in the Windows Subsystem for Linux (wsl --install)"
    )

# An sdist contains no links, and the kernels only once: a patch of `kernels` changes what is built.
if not os.path.lexists("pytagi_ddp/kernels"):
    os.symlink("../kernels", "pytagi_ddp/kernels")

KERNELS = [Path("pytagi_ddp/kernels/cpu", name) for name in ("products", "runtime", "layers")]
ENGINE = Path("pytagi_ddp/distributed/engine")
COMPILER = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
LIBOMP = ("/opt/homebrew/opt/libomp", "/usr/local/opt/libomp")  # of Homebrew, which puts it on no search path
SANITIZE = os.environ.get("PYTAGI_DDP_SANITIZE") == "1"
COMPILING = {"build", "build_ext", "bdist_wheel", "editable_wheel", "develop", "install"} & set(sys.argv)


def compiles(program, *flags):
    """Whether the compiler makes a program of this C code."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*COMPILER, "-x", "c", "-", *flags, "-o", os.path.join(folder, "program")]
        return subprocess.run(command, input=program.encode(), capture_output=True, check=False).returncode == 0


def missing():
    """What has to be installed before anything can be compiled, in one line; None if nothing."""
    name = " ".join(COMPILER)
    if not shutil.which(COMPILER[0]) or not compiles("#include <stdlib.h>\nint main(void) { return 0; }"):
        return (
            f"there is no C compiler that works ({name} was tried): install one (Debian, Ubuntu: apt install gcc "
            "libc6-dev; Fedora: dnf install gcc; conda: conda install c-compiler; macOS: xcode-select --install), or "
            "name yours by the variable CC"
        )
    headers = ["-I" + sysconfig.get_path(kind) for kind in ("include", "platinclude")]
    if not compiles("#include <Python.h>\nint main(void) { return 0; }", *headers):
        return (
            f"the C headers of Python {sysconfig.get_python_version()} are not there: install them (Debian, Ubuntu: "
            "apt install python3-dev; Fedora: dnf install python3-devel)"
        )
    return None


def openmp():
    """The flags of OpenMP, or none where compiler or library lack it, as clang does without libomp.

    Apple's clang knows OpenMP only as an option of its preprocessor, and libomp comes from elsewhere (Homebrew). gcc
    takes that option, too, but would compile no loop for threads.
    """
    program = "#include <omp.h>\nint main(void) { return !omp_get_max_threads(); }"
    if not COMPILING or compiles(program, "-fopenmp"):
        return ["-fopenmp"]
    for folder in ("", *LIBOMP):
        flags = ["-Xpreprocessor", "-fopenmp", *([f"-I{folder}/include", f"-L{folder}/lib"] if folder else ()), "-lomp"]
        if compiles(f"#ifndef __clang__\n#error\n#endif\n{program}", *flags):
            return flags
    print("pytagi_ddp: this C compiler has no OpenMP, the library will work on one thread", file=sys.stderr)
    return []


if COMPILING and (what := missing()):
    sys.exit(f"pytagi_ddp cannot be compiled: {what}")
OPENMP = openmp()
# Debug information changes no instruction, and takes time. Many Pythons ask for it; it is made only if CFLAGS do.
DEBUG = [] if re.search(r"(?:^|\s)-g", os.environ.get("CFLAGS", "")) else ["-g0"]
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address"] if SANITIZE else ["-O3", *DEBUG]
LINKED = ["-fsanitize=address"] if SANITIZE else []
# Nothing is tuned for this machine: loops pick their instructions when they are loaded (loops.h). Compilers differ on
# how wide vectors of AVX-512 should be, and with the width last bits of sums change: so it is said here.
if COMPILING and compiles("int main(void) { return 0; }", "-Werror", "-mprefer-vector-width=256"):
    FLAGS.append("-mprefer-vector-width=256")


def cores():
    """The cores that a build may use: those of this process, or fewer if CPU_COUNT, or -jN in MAKEFLAGS, says so."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    said = [os.environ.get("CPU_COUNT", ""), *re.findall(r"(?:^|\s)-j ?(\d+)", os.environ.get("MAKEFLAGS", ""))]
    return min([mine, *(int(number) for number in said if number.isdecimal() and int(number))])


class BuildKernels(build_ext):
    """Compiles on all cores that it may use at once."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or cores()


def header_folders(source):
    """The folders whose headers a module may use: its own, and earlier ones of the kernels."""
    return KERNELS[: KERNELS.index(source.parent) + 1] if source.parent in KERNELS else [source.parent]


def extension(source):
    return Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        depends=[
            str(path)
            for pattern in ("*.h", "*.pxd")
            for folder in header_folders(source)
            for path in folder.glob(pattern)
        ],
        include_dirs=[numpy.get_include(), *map(str, header_folders(source))],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=[*FLAGS, *OPENMP],
        extra_link_args=[*OPENMP, *LINKED],
    )


SOURCES = [path for folder in (*KERNELS, ENGINE) for path in folder.glob("*.pyx")]
SOURCES.sort(key=lambda path: path.name, reverse=True)  # begins with those that take longest
# What typed memoryviews need, 20,000 lines of C, which each module would have otherwise: compiling takes a third less.
# It is not among the kernels, because modules that import it must not load these.
SHARED = "pytagi_ddp._memoryviews"
shared = Extension(SHARED, [SHARED.replace(".", "/") + ".c"], extra_compile_args=FLAGS, extra_link_args=LINKED)
setup(
    ext_modules=cythonize(
        [*map(extension, SOURCES), shared],
        shared_utility_qualified_name=SHARED,
        language_level=3,
        compiler_directives={"boundscheck": SANITIZE, "initializedcheck": SANITIZE},
        force=SANITIZE,
    ),
    cmdclass={"build_ext": BuildKernels},
)
