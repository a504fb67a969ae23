"""C functions that call compiled loops, with their arguments in a block of machine words.

Numba compiles a loop to a function with arguments in registers and on the stack: for an array the addresses of its
owner (two, unused here), number of elements, size of an element, address, shape and strides; for a number the number.
An entry reads them from the block, whose first word is the address of the loop, and calls the loop. So there is one
entry for each list of argument types, not for each loop.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock

from pytagi_ddp.interrupts import held_back
from pytagi_ddp.kernels.cpu.runtime.shared_cache import LAST_KNOWN_NUMBA

NO_OWNER = (0, 0)
_entries: dict[str, tuple[int, Any]] = {}  # by type of the loop's function: address, and the code that keeps it


def entry_of(loop: Any, arguments: tuple) -> tuple[int, list[int]] | None:
    """Address of the entry and its words for a call of a compiled loop; None if the call has to go through Python.

    Args:
        loop: compiled by Numba, and called with these arguments before.
        arguments: arrays, numbers and None.
    """
    if numba.config.DISABLE_JIT or numba.version_info.short > LAST_KNOWN_NUMBA:
        return None  # a later version may pass arguments in another way
    signature = tuple(map(numba.typeof, arguments))
    compiled = loop.overloads.get(signature)
    if compiled is None or compiled.signature.return_type != types.none:
        return None
    words = []
    for argument in arguments:
        block = _words(argument)
        if block is None:
            return None
        words += block
    convention = compiled.target_context.call_conv
    function_type = convention.get_function_type(types.none, signature)
    if len(function_type.args) != len(words) + 2:  # the result and an exception come first
        return None
    with held_back(always=True), global_compiler_lock:  # so that no fork leaves LLVM locked
        target = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return _entry(compiled.target_context, function_type), [target, *words]


def _words(argument: Any) -> list[int] | None:
    if argument is None:
        return [0]
    if isinstance(argument, np.ndarray):
        data = argument.__array_interface__["data"][0]
        return [*NO_OWNER, argument.size, argument.itemsize, data, *argument.shape, *argument.strides]
    if isinstance(argument, np.float32):
        return [int(argument.view(np.uint32))]
    if isinstance(argument, bool | int | np.bool_ | np.integer):
        return [int(argument)]
    return None


def _entry(context: Any, function_type: ir.FunctionType) -> int:
    key = str(function_type)
    if key not in _entries:
        with held_back(always=True), global_compiler_lock:
            if key not in _entries:  # another thread may have compiled it meanwhile
                _entries[key] = _compile(context, function_type, f"pytagi_ddp_entry_{len(_entries)}")
    return _entries[key][0]


def _compile(context: Any, function_type: ir.FunctionType, name: str) -> tuple[int, Any]:
    word, library = ir.IntType(64), context.codegen().create_library(name)
    module = library.create_ir_module(name)
    pointer = word.as_pointer()
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer, pointer]), name)
    builder = ir.IRBuilder(entry.append_basic_block())
    values = [
        builder.load(builder.gep(entry.args[0], [ir.Constant(word, k)])) for k in range(len(function_type.args) - 1)
    ]
    target = builder.inttoptr(values[0], function_type.as_pointer())
    results = [builder.bitcast(builder.alloca(word), kind) for kind in function_type.args[:2]]
    arguments = [_cast(builder, value, kind) for value, kind in zip(values[1:], function_type.args[2:], strict=True)]
    builder.call(target, results + arguments)
    builder.ret_void()
    library.add_ir_module(module)
    library.finalize()
    return library.get_pointer_to_function(name), library


def _cast(builder: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    if isinstance(kind, ir.PointerType):
        return builder.inttoptr(value, kind)
    if isinstance(kind, ir.FloatType):
        return builder.bitcast(builder.trunc(value, ir.IntType(32)), kind)
    return value if kind == value.type else builder.trunc(value, kind)
