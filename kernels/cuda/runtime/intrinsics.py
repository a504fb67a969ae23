"""Instructions that Numba has no name for: 16-byte accesses, asynchronous copies, tensor-core products, tickets."""

from llvmlite import ir

from pytagi_ddp.kernels.cuda.runtime.compile import float32, int32, intrinsic, types

__all__ = [
    "arrive",
    "copy_async1",
    "copy_async4",
    "copy_commit",
    "copy_wait",
    "divide",
    "load1",
    "load4",
    "mma_tf32",
    "store1",
    "store4",
]

_FLOAT, _INT, _LONG, _VOID = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.VoidType()
_FLOAT4 = ir.VectorType(_FLOAT, 4)


def _address(context, builder, kind, value, index):
    """Address of element `index` of shared or local memory (an array) or of device memory (a pointer)."""
    start = context.make_array(kind)(context, builder, value=value).data if hasattr(kind, "layout") else value
    return builder.gep(start, [index])


def _vector_address(context, builder, kind, value, index):
    address = _address(context, builder, kind, value, index)
    return builder.bitcast(address, ir.PointerType(_FLOAT4, addrspace=address.type.addrspace))


def _assembly(builder, result, operands, code, constraints, effect):
    function = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(function, code, constraints, side_effect=effect), operands)


@intrinsic
def divide(typing, a, b):
    """(a // b, a % b) of int32 numbers >= 0, computed as unsigned numbers, which takes less code."""

    def generate(context, builder, signature, args):
        parts = [builder.udiv(*args), builder.urem(*args)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(int32, 2)(int32, int32), generate


@intrinsic
def arrive(typing, tickets, i, last):
    """Takes the next number of tickets[i], which counts from 0 to `last` and then starts again at 0; atomic.

    All that this thread wrote before, or saw after a barrier, is visible to threads that take a later number.
    """

    def generate(context, builder, signature, args):
        place = builder.ptrtoint(_address(context, builder, signature.args[0], *args[:2]), _LONG)
        code = "atom.acq_rel.gpu.global.inc.u32 $0, [$1], $2;"
        return _assembly(builder, _INT, [place, args[2]], code, "=r,l,r,~{memory}", True)

    return int32(tickets, types.int64, int32), generate


@intrinsic
def load1(typing, memory, i):
    """memory[i] of float32, without numba's handling of negative i: constants become part of the instruction."""

    def generate(context, builder, signature, args):
        return builder.load(_address(context, builder, signature.args[0], *args))

    return float32(memory, types.int64), generate


@intrinsic
def store1(typing, memory, i, value):
    """memory[i] = value, like `load1`."""

    def generate(context, builder, signature, args):
        builder.store(args[2], _address(context, builder, signature.args[0], *args[:2]))
        return context.get_dummy_value()

    return types.void(memory, types.int64, float32), generate


@intrinsic
def load4(typing, memory, i):
    """memory[i : i + 4] in one instruction; the address is a multiple of 16 bytes."""

    def generate(context, builder, signature, args):
        vector = builder.load(_vector_address(context, builder, signature.args[0], *args))
        vector.align = 16
        parts = [builder.extract_element(vector, ir.Constant(_INT, e)) for e in range(4)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(float32, 4)(memory, types.int64), generate


@intrinsic
def store4(typing, memory, i, a, b, c, d):
    """memory[i : i + 4] = a, b, c, d in one instruction; the address is a multiple of 16 bytes."""

    def generate(context, builder, signature, args):
        vector = ir.Constant(_FLOAT4, ir.Undefined)
        for e, value in enumerate(args[2:]):
            vector = builder.insert_element(vector, value, ir.Constant(_INT, e))
        store = builder.store(vector, _vector_address(context, builder, signature.args[0], *args[:2]))
        store.align = 16
        return context.get_dummy_value()

    return types.void(memory, types.int64, float32, float32, float32, float32), generate


def _copy_async(count):
    size = 4 * count

    @intrinsic
    def copy_async(typing, shared, i, memory, j, valid):
        """Starts shared[i : i + count] = memory[j : j + count], or zeros if not valid."""

        def generate(context, builder, signature, args):
            shared_type, _, memory_type = signature.args[:3]
            target = builder.ptrtoint(_address(context, builder, shared_type, args[0], args[1]), _LONG)
            target = _assembly(builder, _LONG, [target], "cvta.to.shared.u64 $0, $1;", "=l,l", False)
            source = builder.ptrtoint(_address(context, builder, memory_type, args[2], args[3]), _LONG)
            taken = builder.select(args[4], ir.Constant(_INT, size), ir.Constant(_INT, 0))
            kind = "cg" if size == 16 else "ca"  # only copies of 16 bytes can bypass the L1 cache
            code = f"cp.async.{kind}.shared.global [$0], [$1], {size}, $2;"
            _assembly(builder, _VOID, [builder.trunc(target, _INT), source, taken], code, "r,l,r,~{memory}", True)
            return context.get_dummy_value()

        return types.void(shared, types.int64, memory, types.int64, types.boolean), generate

    return copy_async


copy_async1, copy_async4 = _copy_async(1), _copy_async(4)


@intrinsic
def copy_commit(typing):
    """Closes a group of asynchronous copies."""

    def generate(context, builder, signature, args):
        _assembly(builder, _VOID, [], "cp.async.commit_group;", "~{memory}", True)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def copy_wait(typing):
    """Waits for all groups of this thread's copies except the last."""

    def generate(context, builder, signature, args):
        _assembly(builder, _VOID, [], "cp.async.wait_group 1;", "~{memory}", True)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def mma_tf32(typing, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """C + A B of a warp, A 16 x 8, B 8 x 8, without the last 13 bits of their numbers. Lane 4 g + t holds:

    a: A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4]; b: B[t, g], B[t + 4, g];
    c: C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1]. Source: PTX ISA, mma.m16n8k8.
    """

    def generate(context, builder, signature, args):
        operands = [builder.bitcast(x, _INT) for x in args[:6]] + list(args[6:])
        code = (
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
            "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
        )
        result = ir.LiteralStructType([_FLOAT] * 4)
        four = _assembly(builder, result, operands, code, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", False)
        parts = [builder.extract_value(four, e) for e in range(4)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(float32, 4)(*[float32] * 10), generate
