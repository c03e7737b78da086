import pytest

from fastsgemm import rungs
from fastsgemm.geometry import variants
from fastsgemm.jit import source
from fastsgemm.sim import nvrtc, ptx
from fastsgemm.sim.errors import PtxError
from fastsgemm.sim.ptx import Address, Constant, Guard, Register, SourceLine, Symbol, Vector

MODULE = """
.version 8.0
.target sm_90
.address_size 64
.shared .align 16 .b8 fixed[100];
.extern .shared .align 16 .b8 dynamic[];
// .entry not_this_one()
.visible .entry f(
    .param .u64 f_param_0,
    .param .f32 f_param_1
)
.maxntid 128, 1, 1
{
    .reg .pred %p<3>;
    .reg .b32 %r<4>, %x;
    .reg .f32 %f<9>;
    .shared .align 4 .f32 more[3];
    .shared .f32 one;
    .loc 1 7 3
    mov.u32 %r1, %tid.x; /* a comment */
$L_again:
    .loc 2 5 1, function_name $L__info, inlined_at 1 8 2
    @!%p1 ld.global.v2.f32 {%f1, %f2}, [%r1+-8];
    .loc 2 0 1
    { .reg .pred p; setp.ne.b32 p, %r1, -3; @p st.shared.f32 [fixed], %f1; }
    .pragma "used_bytes_mask 4095";
    ld.shared.v4.f32 {%f4, %f5, %f6, %f7}, [fixed];
    .pragma "nounroll";
    fma.rn.f32 %f3, %f1, 0f3F800000, %f2;
    bra.uni $L_again;
}
.file 1 "a.cu"
.file 2 "device/b.cuh"
"""


@pytest.fixture
def kernel():
    return ptx.parse(MODULE)["f"]


def test_head(kernel):
    assert [(p.name, p.type) for p in kernel.parameters] == [("f_param_0", "u64"), ("f_param_1", "f32")]
    assert kernel.labels == {"$L_again": 1}
    assert kernel.shared == {"fixed": 0, "more": 100, "one": 112, "dynamic": 128}
    assert kernel.static_shared == 116


def test_a_directive_that_would_have_no_effect_is_refused():
    with pytest.raises(PtxError, match=r"kernel f has directives that are not simulated: \['.reqntid'\]"):
        ptx.parse(MODULE.replace(".maxntid 128, 1, 1", ".maxntid 128, 1, 1\n.reqntid 128, 1, 1"))


def test_instructions(kernel):
    move, load, compare, store, part, fma, branch = kernel.instructions
    assert (part.used_bytes, fma.used_bytes) == (12, None)
    assert move.operands == (Register("%r1"), Symbol("%tid.x"))
    assert load.opcode == "ld.global.v2.f32" and load.guard == Guard(Register("%p1"), True)
    assert load.operands == (Vector((Register("%f1"), Register("%f2"))), Address(Register("%r1"), -8))
    assert compare.operands[2] == Constant(-3)
    assert fma.operands[2] == Constant(0x3F800000, floating=True)
    assert store.operands[0] == Address(Symbol("fixed"), 0)
    assert branch.operands == (Symbol("$L_again"),)


def test_source_lines(kernel):
    move, load, compare, *_ = kernel.instructions
    assert move.where == SourceLine("a.cu", 7) and move.place == "a.cu:7"
    assert load.place == "device/b.cuh:5 (inlined at a.cu:8)"
    assert compare.where == load.where, "line 0 is the compiler's own"


def test_names_of_inner_blocks_are_their_own(kernel):
    _, _, compare, store, *_ = kernel.instructions
    assert store.guard is not None and store.guard.register == compare.operands[0]
    assert compare.operands[0] != Register("p")
    assert kernel.type_of(compare.operands[0]) == "pred"


def test_types(kernel):
    assert [kernel.type_of(Register(name)) for name in ("%p2", "%r3", "%x", "%f8")] == ["pred", "b32", "b32", "f32"]
    with pytest.raises(PtxError, match=r"%rd1 .*not declared"):
        kernel.type_of(Register("%rd1"))


def test_a_parameter_that_cannot_be_read():
    with pytest.raises(PtxError, match="cannot read the parameter 'int x'; only scalars, pointers and structs"):
        ptx.parse(".visible .entry f(int x)\n{ ret; }\n")


def test_constants():
    values = """.visible .const .align 8 .u64 a = -2;
.const .align 4 .f32 b = 0f3F800000;
.const .align 2 .b8 c[4] = {1, 255};
"""
    module = ptx.parse(values + MODULE)
    assert module["f"].constants == {"a": b"\xfe" + b"\xff" * 7, "b": b"\0\0\x80\x3f", "c": b"\x01\xff\0\0"}


def test_a_constant_that_cannot_be_read():
    with pytest.raises(PtxError, match=r"cannot read the value of a, 'generic\(b\)'; only numbers can be constants"):
        ptx.parse(".const .align 8 .u64 a = generic(b);\n" + MODULE)


def test_the_lines_of_a_rung_point_into_cuda_src(configs):
    rung = rungs.find("warptiled")
    text = source.rung_spec(rung, configs["warptiled"], variants.Variant()).text
    kernel = ptx.parse(nvrtc.compile_source(text, "sm_80").ptx)[rung.kernel]
    files = {instruction.where.file for instruction in kernel.instructions if instruction.where}
    assert rung.file in files and "device/tile_copy.cuh" in files
    assert all(name.startswith(("device/", "08_")) for name in files)
