"""The one thing that pyproject.toml cannot say: an optional C library.

It is loaded through ctypes, so it needs neither Python's nor torch's headers. Without a C compiler the build goes on
and the engines fall back to torch.
"""

import platform
from glob import glob

from setuptools import Extension, setup

# Not -march=native, as a wheel may travel: the loader checks that the processor has these.
vectors = ["-mavx2", "-mfma"] if platform.machine() in ("x86_64", "AMD64") else []
native = Extension(
    "engines._native",
    sources=sorted(glob("engines/csrc/*.c")),
    depends=sorted(glob("engines/csrc/*.h")),
    extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", *vectors],
    libraries=["m", "pthread"],
    optional=True,
)
setup(ext_modules=[native])
