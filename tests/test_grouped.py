"""`grouped_mm`: its arguments, host arrays, and device arrays on a device made of Python."""

import numpy as np
import pytest

from fastsgemm import grouped_mm, sgemm
from fastsgemm.call import arrays
from fastsgemm.errors import (
    ArgumentError,
    DeviceMismatchError,
    DTypeError,
    NoDriverError,
    NoNvrtcError,
    OperandError,
    OverlapError,
    PrecisionError,
    ScalarError,
    ScalarRangeError,
    ShapeError,
    StreamError,
)
from fastsgemm.jit import compiler

ENDS = np.array([3, 3, 10], np.int32)
SHAPES = {  # of A, B and the result, of 12 rows, steps or columns
    "rows": ((12, 4), (3, 4, 5), (12, 5)),
    "k": ((6, 12), (12, 5), (3, 6, 5)),
    "columns": ((3, 6, 4), (4, 12), (6, 12)),
}


@pytest.fixture(autouse=True)
def without_a_device(monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "host")


@pytest.fixture(params=SHAPES)
def kind(request):
    return request.param


def drawn(kind):
    random = np.random.default_rng(7)
    return [random.standard_normal(shape).astype(np.float32) for shape in SHAPES[kind]]


def product(kind, A, B, alpha=1.0, beta=0.0, old=None, into=None):
    """Return the result in float64; what belongs to no group is as in `into`."""
    result = (np.zeros(SHAPES[kind][2]) if into is None else into).astype(np.float64)
    for g, (begin, end) in enumerate([(0, 3), (3, 3), (3, 10)]):
        rows = slice(begin, end)
        where = {"rows": np.s_[rows], "k": g, "columns": np.s_[:, rows]}[kind]
        a = A[rows] if kind == "rows" else A[:, rows] if kind == "k" else A[g]
        b = B[g] if kind == "rows" else B[rows] if kind == "k" else B[:, rows]
        result[where] = alpha * (a.astype(np.float64) @ b) + (beta * old[where] if beta else 0)
    return result


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def groups_of(kind, x):
    """Return the part of a result that belongs to a group."""
    return {"rows": x[:10], "k": x, "columns": x[:, :10]}[kind]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_new_result(kind, dtype):
    A, B, _ = drawn(kind)
    result = grouped_mm(A, B, ENDS.astype(dtype))
    assert type(result) is np.ndarray and result.dtype == np.float32 and result.shape == SHAPES[kind][2]
    close(groups_of(kind, result), groups_of(kind, product(kind, A, B)))


def test_c_is_updated_in_place_and_what_is_past_the_last_group_stays(kind):
    A, B, C = drawn(kind)
    expected = product(kind, A, B, 2.0, -0.5, C, C)
    assert grouped_mm(A, B, ENDS, 2.0, C, -0.5) is C
    close(C, expected)


def test_out_is_written_in_place_of_c(kind):
    A, B, C = drawn(kind)
    before, out = C.copy(), np.full(C.shape, 9, np.float32)
    expected = product(kind, A, B, 2.0, 0.5, C, out)
    assert grouped_mm(A, B, ENDS, 2.0, C, 0.5, out=out) is out
    close(out, expected)
    assert (before == C).all()


@pytest.mark.parametrize("backend", ["host", "sim"])
def test_offsets_that_do_not_ascend_or_are_past_the_end(kind, backend, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", backend)
    A, B, _ = drawn(kind)
    as_if, given = np.array([5, 5, 12], np.int32), np.array([5, -3, 99], np.int64)
    close(grouped_mm(A, B, given), grouped_mm(A, B, as_if))


def test_one_size_needs_no_offsets():
    random = np.random.default_rng(2)
    A, B, C = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 4, 5), (3, 5, 6), (3, 4, 6)))
    expected = sgemm(A, B, 2.0, 0.5, C.copy())
    assert (grouped_mm(A, B, alpha=2.0, C=C, beta=0.5) == expected).all()
    with pytest.raises(ShapeError, match="as many matrices, got 3 and 2"):
        grouped_mm(A, B[:2])


def test_precision_fp16x3_has_the_ieee_kernel_where_that_is_quicker(kind, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    A, B, _ = drawn(kind)
    result = grouped_mm(A, B, ENDS, precision="fp16x3")
    assert (groups_of(kind, result) == groups_of(kind, grouped_mm(A, B, ENDS))).all()


@pytest.mark.parametrize("backend", ["host", "sim"])
def test_operands_of_16_bits_have_float32_results(kind, backend, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", backend)
    A, B, _ = drawn(kind)
    A, B = A.astype(np.float16), B.astype(np.float16)
    result = grouped_mm(A, B, ENDS, precision="ieee")
    assert result.dtype == np.float32
    close(groups_of(kind, result), groups_of(kind, product(kind, A, B)))


def test_the_simulated_device_computes_host_arrays_where_it_is_asked_for(kind, monkeypatch):
    monkeypatch.setenv("FASTSGEMM_DEVICE", "sim")
    A, B, C = drawn(kind)
    expected = product(kind, A, B, 1.5, 0.5, C, C)
    close(grouped_mm(A, B, ENDS, 1.5, C, 0.5), expected)


WRONG = {
    "no offsets": (lambda A, B, C: grouped_mm(A, B), ArgumentError, "offsets= is missing.*got 2 and 3"),
    "offsets of a batch": (lambda A, B, C: grouped_mm(B, B, ENDS), ShapeError, "not both 3 with offsets, got 3 and 3"),
    "a vector": (lambda A, B, C: grouped_mm(A[0], B, ENDS), ShapeError, "2 or 3 dimensions.*got 1 and 3"),
    "K": (lambda A, B, C: grouped_mm(A[:, 1:], B, ENDS), ShapeError, "A's columns must equal B's rows, got 3 and 4"),
    "matrices": (lambda A, B, C: grouped_mm(A, B[1:], ENDS), ShapeError, "B must have a matrix for each of the 3"),
    "two dimensions": (lambda A, B, C: grouped_mm(A, B, ENDS[None]), ShapeError, "must have 1 dimension, got 2"),
    "float offsets": (lambda A, B, C: grouped_mm(A, B, ENDS.astype("f")), DTypeError, "offsets must be int32 or int64"),
    "a list": (lambda A, B, C: grouped_mm(A, B, [3, 3, 10]), DTypeError, "must be arrays"),
    "float64": (lambda A, B, C: grouped_mm(A.astype("d"), B, ENDS), DTypeError, "A must be float32, got float64"),
    "float16": (lambda A, B, C: grouped_mm(A, B.astype("e"), ENDS), DTypeError, "B must be float32, got float16; 16-b"),
    "float16 out": (
        lambda A, B, C: grouped_mm(A, B, ENDS, precision="ieee", out=C.astype("e")), DTypeError, "out must be float32"
    ),
    "float16 C": (
        lambda A, B, C: grouped_mm(A, B, ENDS, 1, C.astype("e"), 1, precision="ieee", out=C), DTypeError, "C must be f"
    ),
    "precision": (
        lambda A, B, C: grouped_mm(A, B, ENDS, precision="fp16x3", batch_invariant=True), PrecisionError,
        "needs precision 'ieee' for groups",
    ),
    "order": (
        lambda A, B, C: grouped_mm(A, B, ENDS, batch_invariant=True), NoDriverError, "set FASTSGEMM_DEVICE=sim"
    ),
    "C": (lambda A, B, C: grouped_mm(A, B, ENDS, C=C[1:]), ShapeError, r"C must have shape \(12, 5\), got \(11, 5\)"),
    "out": (lambda A, B, C: grouped_mm(A, B, ENDS, out=C[1:]), ShapeError, "out must have shape"),
    "a C that broadcasts": (lambda A, B, C: grouped_mm(A, B, ENDS, 1, C[0], 1, out=C), ShapeError, "C must have shape"),
    "beta": (lambda A, B, C: grouped_mm(A, B, ENDS, beta=1.0), ScalarRangeError, "beta must be 0 when C is not given"),
    "unread C": (lambda A, B, C: grouped_mm(A, B, ENDS, C=C, out=C.copy()), ScalarRangeError, "C beside out="),
    "alpha": (lambda A, B, C: grouped_mm(A, B, ENDS, "2"), ScalarError, "alpha must be a real number"),
    "overlap": (
        lambda A, B, C: grouped_mm(OVERLAPPING[0], B, ENDS, out=OVERLAPPING[1]), OverlapError,
        "out shares memory with A",
    ),
    "stream": (lambda A, B, C: grouped_mm(A, B, ENDS, stream=3), StreamError, "stream= is for device arrays"),
}  # fmt: skip


MEMORY = np.zeros((12, 8), np.float32)
OVERLAPPING = MEMORY[:, :4], MEMORY[:, 3:]  # an A and a C that share a column


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    call, error, message = WRONG[name]
    A, B, C = drawn("rows")
    before = C.copy()
    with pytest.raises(error, match=message):
        call(A, B, C)
    assert (before == C).all()


def test_a_result_that_is_read_only_or_overlaps():
    A, B, C = drawn("rows")
    C.flags.writeable = False
    with pytest.raises(OperandError, match="C is read-only"):
        grouped_mm(A, B, ENDS, C=C)
    ends = np.zeros(60, np.int32)
    with pytest.raises(OverlapError, match="out shares memory with offsets"):
        grouped_mm(A, B, ends[:3], out=ends.view(np.float32).reshape(12, 5))


class TestOnADevice:
    def operands(self, on_device, kind):
        return [on_device(x) for x in drawn(kind)] + [on_device(ENDS)]

    def test_one_launch_on_the_current_stream_and_nothing_is_kept(self, device, on_device, kind):
        A, B, C, ends = self.operands(on_device, kind)
        expected = product(kind, A.values, B.values, 2.0, 0.5, C.values, C.values)
        assert grouped_mm(A, B, ends, 2.0, C, 0.5) is C
        close(C.values, expected)
        assert [handle for handle, _ in device.launched] == [5] and device.kept == []
        assert set(arrays.library(A).viewed) == {(5, True)}

    def test_a_new_result_and_one_with_a_source(self, device, on_device, kind):
        A, B, C, ends = self.operands(on_device, kind)
        result = grouped_mm(A, B, ends)
        close(groups_of(kind, result.values), groups_of(kind, product(kind, A.values, B.values)))
        out = on_device(np.zeros(C.values.shape, np.float32))
        assert grouped_mm(A, B, ends, 1.0, C, 0.5, out=out) is out
        close(out.values, product(kind, A.values, B.values, 1.0, 0.5, C.values, out.values * 0))

    def test_a_plan_serves_other_offsets(self, device, on_device, kind):
        A, B, C, ends = self.operands(on_device, kind)
        grouped_mm(A, B, ends, C=C)
        plans = len(device.prepared)
        others = on_device(np.array([1, 5, 12], np.int32))
        close(grouped_mm(A, B, others).values, grouped_mm(A.values, B.values, others.values))
        grouped_mm(A, B, on_device(np.zeros(3, np.int32)), C=C)
        assert len(device.prepared) == plans
        grouped_mm(A, B, others, C=C, batch_invariant=True)
        assert len(device.prepared) == plans + 1

    @pytest.mark.parametrize(("how", "said"), [({}, "'ieee'"), ({"batch_invariant": True}, "'ieee', batch-")])
    def test_a_kernel_that_cannot_be_compiled_names_the_problem(self, device, on_device, kind, monkeypatch, how, said):
        def missing(*_):
            raise NoNvrtcError("fastsgemm_pipelined is not stored")

        monkeypatch.setattr(compiler, "cubin", missing)
        A, B, C, ends = self.operands(on_device, kind)
        with pytest.raises(NoNvrtcError) as caught:
            grouped_mm(A, B, ends, C=C, **how)
        problem = {"rows": "12,5,4,m3", "k": "6,5,12,k3", "columns": "6,12,4,n3"}[kind]
        assert str(caught.value).startswith(f"{problem} with precision {said}")
        assert str(caught.value).endswith(": fastsgemm_pipelined is not stored")

    def test_a_stream_of_its_own(self, device, on_device):
        A, B, C, ends = self.operands(on_device, "rows")

        class Stream:
            def __cuda_stream__(self):
                return 0, 77

        grouped_mm(A, B, ends, C=C, stream=Stream())
        assert [handle for handle, _ in device.launched] == [77]
        [(handle, kept)] = device.kept
        assert handle == 77 and any(x is ends for x in kept) and any(x is A for x in kept)

    def test_offsets_elsewhere_or_wrong(self, device, on_device):
        A, B, C, ends = self.operands(on_device, "rows")
        with pytest.raises(DeviceMismatchError, match="offsets on the host"):
            grouped_mm(A, B, ENDS, C=C)
        with pytest.raises(DeviceMismatchError, match="one device"):
            grouped_mm(A.values, B.values, ends)
        with pytest.raises(DTypeError, match="offsets must be int32 or int64, got float32"):
            grouped_mm(A, B, A, C=C)
        with pytest.raises(ShapeError, match="offsets must have 1 dimension, got 2"):
            grouped_mm(A, B, on_device(ENDS[None]), C=C)
        with pytest.raises(ShapeError, match="B must have a matrix for each of the 2 groups, got 3"):
            grouped_mm(A, B, on_device(ENDS[:2]))
        with pytest.raises(OverlapError, match="out shares memory with A"):
            grouped_mm(on_device(OVERLAPPING[0]), B, ends, out=on_device(OVERLAPPING[1]))
        memory = np.zeros(60, np.int32)
        with pytest.raises(OverlapError, match="C shares memory with offsets"):
            grouped_mm(A, B, on_device(memory[:3]), C=on_device(memory.view(np.float32).reshape(12, 5)))
        with pytest.raises(DTypeError, match="B must be float32, got float16"):
            grouped_mm(A, on_device(B.values.astype(np.float16)), ends, C=C)
        assert device.launched == []


def test_without_a_device_numpy_multiplies_with_a_warning(no_driver, kind):
    A, B, C = drawn(kind)
    expected = product(kind, A, B, 1.0, 0.0, None, C)
    with pytest.warns(RuntimeWarning, match="no NVIDIA GPU"):
        grouped_mm(A, B, ENDS, C=C)
    close(C, expected)


class TestHostArraysThroughADevice:
    """As `sgemm` does it; NumPy would be a silent fallback."""

    @pytest.fixture(autouse=True)
    def through_the_device(self, device, monkeypatch):
        monkeypatch.setattr("fastsgemm.device.host_backend", lambda: "cuda")
        yield
        assert [handle for handle, _ in device.launched] == [device.copying] * len(device.launched) != []
        assert device.leaks == [] and device.kept == []

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("beta", [0.0, 0.5])
    def test_c_is_updated_in_place_and_what_is_past_the_last_group_stays(self, kind, beta, order):
        A, B, C = (np.asarray(x, order=order) for x in drawn(kind))
        expected = product(kind, A, B, 2.0, beta, C, C)
        assert grouped_mm(A, B, ENDS, 2.0, C, beta) is C
        close(C, expected)

    def test_a_part_of_a_larger_result(self, kind):
        A, B, C = drawn(kind)
        memory = np.stack([C, C + 1], -1)
        expected = product(kind, A, B, 1.0, 0.5, C, C)
        grouped_mm(A, B, ENDS, 1.0, memory[..., 0], 0.5)
        close(memory[..., 0], expected)
        assert (memory[..., 1] == C + 1).all()

    def test_a_source_beside_the_result(self, kind):
        test_out_is_written_in_place_of_c(kind)

    def test_a_new_result_of_16_bit_operands_and_one_order(self, kind):
        A, B, _ = (x.astype(np.float16) for x in drawn(kind))
        for options in ({"precision": "ieee"}, {"batch_invariant": True}):
            result = grouped_mm(A, B, ENDS, **options)
            assert type(result) is np.ndarray and result.dtype == np.float32
            close(groups_of(kind, result), groups_of(kind, product(kind, A, B)))

    def test_all_64_bits_of_offsets_count(self, kind):
        A, B, _ = drawn(kind)
        as_if, given = np.array([5, 5, 12], np.int32), np.array([5, -(2**40), 2**32 + 7], np.int64)
        close(grouped_mm(A, B, given), grouped_mm(A, B, as_if))


class TestTensors:
    def test_tensors_in_host_memory(self, torch, kind):
        A, B, C = (torch.from_numpy(x) for x in drawn(kind))
        result = grouped_mm(A, B, torch.from_numpy(ENDS))
        assert type(result) is torch.Tensor
        close(groups_of(kind, result.numpy()), groups_of(kind, product(kind, A.numpy(), B.numpy())))
        version = C._version
        assert grouped_mm(A, B, torch.from_numpy(ENDS), C=C) is C and C._version > version

    def test_gradients(self, torch, kind):
        A, B, _ = (torch.from_numpy(x) for x in drawn(kind))
        ends = torch.from_numpy(ENDS)
        result = grouped_mm(A.requires_grad_(), B, ends, 2.0)
        assert result.requires_grad
        close(result.detach().numpy(), product(kind, A.detach().numpy(), B.numpy(), 2.0))
        with torch.no_grad():
            assert not grouped_mm(A, B, ends).requires_grad
        with pytest.raises(OperandError, match="A requires grad"):
            grouped_mm(A, B, ends, out=torch.empty(SHAPES[kind][2]))
        with pytest.raises(OperandError, match="offsets must be a tensor where A, B or C has gradients, got ndarray"):
            grouped_mm(A, B, ENDS)

    def test_tensors_on_a_device(self, torch, device, kind, monkeypatch):
        """The tensors lie in host memory and pose as those of the device made of Python."""
        A, B, C = (torch.from_numpy(x) for x in drawn(kind))
        library = arrays.library(A)
        monkeypatch.setattr(type(library), "device_of", lambda self, x: 0)
        monkeypatch.setattr(library, "_current", lambda ordinal: 5)
        expected = product(kind, A.numpy(), B.numpy(), 1.0, 0.5, C.numpy(), C.numpy())
        apart = torch.from_numpy(np.stack([ENDS, ENDS - 9], 1).astype(np.int64))[:, 0]
        version = C._version
        assert grouped_mm(A, B, apart, 1.0, C, 0.5) is C and C._version > version
        close(C.numpy(), expected)
        result = grouped_mm(A, B, torch.from_numpy(ENDS))
        close(groups_of(kind, result.numpy()), groups_of(kind, product(kind, A.numpy(), B.numpy())))
        with pytest.raises(DTypeError, match=r"offsets must be int32 or int64, got torch\.uint8"):
            grouped_mm(A, B, torch.zeros(3, dtype=torch.uint8))
        with pytest.raises(OperandError, match="offsets must be a strided tensor"):
            grouped_mm(A, B, torch.zeros(3, dtype=torch.int32).to_sparse())
        assert [handle for handle, _ in device.launched] == [5, 5] and device.kept == []
