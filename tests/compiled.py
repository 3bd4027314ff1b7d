"""Compiles the Triton kernels for a GPU that need not be there, in a process of its own: the interpreter takes code
that the compiler refuses. Prints what each took, one line a kernel.

    TRITON_INTERPRET=0 python -m tests.compiled [capability]
"""

from __future__ import annotations

import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engines import triton_decode

TYPES = {"bf16": (tl.bfloat16, 2), "fp16": (tl.float16, 2), "fp32": (tl.float32, 4)}
# dtype, head dimension, KV heads, query heads a KV head, slots a block (0: one block), tile, mass or not
ATTEND = [
    ("bf16", 128, 32, 1, 16, 64, False),
    ("bf16", 128, 8, 4, 16, 64, True),
    ("bf16", 128, 1, 4, 1, 64, False),
    ("fp16", 80, 32, 1, 0, 64, True),
    ("fp32", 64, 3, 3, 16, 32, True),
]


def compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], capability: int, **options: int) -> Any:
    """`pointers` are the arguments that are no int, by name; ints and pointers are multiples of 16 as far as Triton may
    assume so."""
    signature = {name: pointers.get(name, "i32") for name in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    varying = kernel.do_not_specialize or ()
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if name not in constants and name not in varying and signature[name] != "fp32"
    }
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def main(capability: int) -> None:
    def tell(name: str, kernel: Any) -> None:
        assert kernel.asm["cubin"], name
        print(f"{name}: {kernel.metadata.shared} bytes of shared memory")

    for dtype, dims, groups, group, slots, columns, mass in ATTEND:
        pointers = dict.fromkeys(("q", "keys", "values"), f"*{dtype}") | dict.fromkeys(("tables", "lengths"), "*i32")
        pointers |= dict.fromkeys(("parts", "norms", "scores"), "*fp32") | {"scale": "fp32"}
        sizes = {"GROUPS": groups, "GROUP": group, "ROWS": 16, "SLOTS": slots, "DIMS": dims, "DIM": 128}
        sizes |= {"TYPE": TYPES[dtype][0], "COLUMNS": columns, "SCORES": mass}
        found = compiled(triton_decode._attend, pointers, sizes, capability, num_warps=4, num_stages=3)
        tell(f"attend {dtype}, {groups} x {group} of {dims}, {slots}", found)
    pointers = {"parts": "*fp32", "norms": "*fp32", "out": "*bf16", "lse": "*fp32"}
    tell("join", compiled(triton_decode._join, pointers, {"COUNT": 16, "DIMS": 80, "DIM": 128}, capability))
    pointers = {"scores": "*fp32", "lse": "*fp32", "lengths": "*i32", "mass": "*fp32"}
    sizes = {"GROUPS": 3, "GROUP": 3, "ROWS": 4, "COLUMNS": 256}
    tell("sum of mass", compiled(triton_decode._sum_mass, pointers, sizes, capability))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 90)
