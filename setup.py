"""The one thing that pyproject.toml cannot say: an optional C library, built with the flags of the machine at hand.

`engines/native.c` is loaded through ctypes, so it needs neither Python's nor torch's headers. Without a C compiler the
build goes on and the engines fall back to torch.
"""

import platform
import sys

from setuptools import Extension, setup

# Not -march=native: a wheel may travel. The loader checks that the processor has these.
vectors = ["-mavx2", "-mfma"] if platform.machine() in ("x86_64", "AMD64") else []
openmp = [] if sys.platform == "darwin" else ["-fopenmp"]
# Linked without libgomp on purpose: the symbols come from the OpenMP runtime that torch has already loaded, so that
# one pool of threads serves both.
native = Extension(
    "engines._native",
    sources=["engines/native.c"],
    extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", *vectors, *openmp],
    libraries=["m"],
    optional=True,
)
setup(ext_modules=[native])
