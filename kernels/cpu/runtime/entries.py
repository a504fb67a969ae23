"""C functions that call compiled loops, with their arguments in a block of machine words.

Numba compiles a loop to a function with arguments in registers and on the stack: for an array the addresses of its
owner (two, unused here), number of elements, size of an element, address, shape and strides; for a number the number.
An entry reads them from the block, whose first word is the address of the loop, and calls the loop. So there is one
entry for each list of argument types, not for each loop. Its other arguments are a thread and the number of threads.
"""

from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock

from pytagi_ddp.interrupts import held_back
from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.shared_cache import LAST_KNOWN_NUMBA

count_words = load("runtime._replay").count_words
# By type of the loop's function, and whether threads share it: address, and the code that keeps it.
_entries: dict[str, tuple[int, Any]] = {}


def entry_of(loop: Any, whole: tuple[int, ...], arguments: tuple) -> tuple[int, int] | None:
    """Addresses of the entry and of the loop for these arguments; None if the call has to go through Python.

    Args:
        loop: function that Numba compiles, if it has not yet.
        whole: (0, 1) if its first arguments are a thread and the number of threads, else ().
        arguments: its other arguments: arrays, numbers and None.
    """
    if numba.config.DISABLE_JIT or numba.config.BOUNDSCHECK:
        return None  # an entry cannot raise IndexError
    if numba.version_info.short > LAST_KNOWN_NUMBA:
        return None  # a later version may pass arguments in another way
    signature = tuple(map(numba.typeof, (*whole, *arguments)))
    compiled = loop.overloads.get(signature)
    if compiled is None:
        loop.compile(signature)
        compiled = loop.overloads[signature]
    if compiled.signature.return_type != types.none:
        return None
    convention = compiled.target_context.call_conv
    function_type = convention.get_function_type(types.none, signature)
    if len(function_type.args) != 2 + len(whole) + count_words(arguments):  # the result and an exception come first
        return None
    with held_back(always=True), global_compiler_lock:  # so that no fork leaves LLVM locked
        target = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return _entry(compiled.target_context, function_type, bool(whole)), target


def _entry(context: Any, function_type: ir.FunctionType, divided: bool) -> int:
    key = f"{function_type} {divided}"
    if key not in _entries:
        with held_back(always=True), global_compiler_lock:
            if key not in _entries:  # another thread may have compiled it meanwhile
                _entries[key] = _compile(context, function_type, divided, f"pytagi_ddp_entry_{len(_entries)}")
    return _entries[key][0]


def _compile(context: Any, function_type: ir.FunctionType, divided: bool, name: str) -> tuple[int, Any]:
    word, library = ir.IntType(64), context.codegen().create_library(name)
    module = library.create_ir_module(name)
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [word.as_pointer(), word, word]), name)
    builder = ir.IRBuilder(entry.append_basic_block())
    block, *place = entry.args
    place = place if divided else []
    count = len(function_type.args) - 1 - len(place)
    target, *values = [builder.load(builder.gep(block, [ir.Constant(word, k)])) for k in range(count)]
    results = [builder.bitcast(builder.alloca(word), kind) for kind in function_type.args[:2]]
    values = [_cast(builder, value, kind) for value, kind in zip(place + values, function_type.args[2:], strict=True)]
    builder.call(builder.inttoptr(target, function_type.as_pointer()), results + values)
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
