"""Operands that are not what they claim. Each ends in an error of fastsgemm that names it, and C is not written."""

import gc
import sys
import warnings
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsgemm import BlockConfig, sgemm
from fastsgemm.call import arrays, checks
from fastsgemm.errors import DeviceMismatchError, DTypeError, FastsgemmError, OperandError, ScalarError, StreamError
from fastsgemm.geometry.layout import Meta

pytestmark = pytest.mark.usefixtures("on_host")

ONES = np.ones((2, 2), np.float32)


def refused(thing, error, message):
    """See that `thing` is refused in every place, by this error with this message, and that nothing is written."""
    C = np.full((2, 2), 7.5, np.float32)
    for call in (
        lambda: sgemm(thing, ONES),
        lambda: sgemm(ONES, thing),
        lambda: sgemm(thing, ONES, C=C),
        lambda: sgemm(ONES, thing, C=C),
        lambda: sgemm(ONES, ONES, C=thing),
    ):
        with pytest.raises(error, match=message) as caught:
            call()
        assert isinstance(caught.value, FastsgemmError)
    assert (C == 7.5).all()
    return 5


class Answering:
    """An object whose DLPack protocol answers what it is told to; an exception among the answers is raised."""

    def __init__(self, device=(1, 0), capsule=None):
        self._device, self._capsule = device, capsule

    def __dlpack_device__(self):
        return give(self._device)

    def __dlpack__(self, **options):
        return give(self._capsule)


class Interface:
    """An object with the CUDA array interface that it is told to have."""

    def __init__(self, interface):
        self._interface = interface

    @property
    def __cuda_array_interface__(self):
        return give(self._interface)


def give(answer):
    if isinstance(answer, BaseException):
        raise answer
    return answer


# What is no array


def generator():
    yield ONES


class Claims:
    """A class that says that it is CuPy's."""


Claims.__module__ = "cupy._core.core"

NOT_ARRAYS = {
    "generator": generator(),
    "NumPy's generator": np.random.default_rng(0),
    "NumPy's dtype": np.dtype("f4"),
    "claims to be CuPy's": Claims(),
    "claims to be of a library by __class__": SimpleNamespace(__class__=np.ndarray),
    "memory": memoryview(b"1234"),
    "module": np,
    "function": np.dot,
    "None": None,
    "NumPy's array class": np.ndarray,
    "class with DLPack": Answering,
    "class with the CUDA array interface": Interface,
}


@pytest.mark.parametrize("thing", NOT_ARRAYS.values(), ids=NOT_ARRAYS)
def test_an_object_that_is_no_array(thing, tried):
    places = 2 if thing is None else 3
    C = np.full((2, 2), 7.5, np.float32)
    for operands in ((thing, ONES, C), (ONES, thing, C), (ONES, ONES, thing))[:places]:
        with pytest.raises(DTypeError, match=r"operands must be arrays .* got "):
            sgemm(operands[0], operands[1], C=operands[2])
    assert (C == 7.5).all()
    tried("operand: no array", places)


def test_a_class_is_called_a_class(tried):
    tried("operand: no array", refused(np.ndarray, DTypeError, r"got the class numpy\.ndarray; numpy\.asarray"))


def test_what_torch_has_beside_tensors(torch, tried):
    things = [torch.float32, torch.nn.Linear(2, 2), torch.Size([2, 2]), torch.Generator(), torch.device("cpu")]
    things += [torch.strided, torch.ones(2).untyped_storage(), torch.Tensor, torch.nn.Parameter, torch]
    for thing in things:
        tried("operand: no array", refused(thing, DTypeError, "operands must be arrays .* got "))


# Arrays whose elements mean more than their bits


class Quantity(np.ndarray):
    """An array with a unit, made as astropy and unyt make theirs."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        raise AssertionError("a unit is NumPy's business")


class Dispatched(np.ndarray):
    def __array_function__(self, function, types, arguments, options):
        raise AssertionError("a function is NumPy's business")


def test_masked_arrays(tried):
    from numpy.ma.mrecords import MaskedRecords

    masked = np.ma.masked_array(ONES, mask=[[True, False], [False, False]])
    for thing in (masked, np.ma.masked_array(ONES), ONES.view(MaskedRecords)):
        tried("operand: elements with a mask or a unit", refused(thing, OperandError, r"has a mask.*\.filled\(value\)"))
    assert (masked.data == 1).all()


@pytest.mark.parametrize("kind", [Quantity, Dispatched])
def test_arrays_that_give_operations_a_meaning_of_their_own(kind, tried):
    message = rf"{kind.__name__} redefines operations .*\.view\(numpy\.ndarray\)"
    tried("operand: elements with a mask or a unit", refused(ONES.view(kind), OperandError, message))
    assert (sgemm(ONES.view(kind).view(np.ndarray), ONES) == 2).all()


@pytest.mark.filterwarnings("ignore:.*matrix subclass:PendingDeprecationWarning")
def test_subclasses_that_hold_plain_numbers_are_taken(tmp_path, tried):
    class Named(np.ndarray):
        def __array_finalize__(self, source):
            self.name = getattr(source, "name", None)

    mapped = np.memmap(tmp_path / "C", np.float32, "w+", shape=(2, 2))
    for C in (np.matrix(ONES), ONES.copy().view(Named), ONES.copy().view(np.recarray), mapped):
        assert sgemm(ONES, C) is not C and type(sgemm(C, ONES)) is np.ndarray
        assert sgemm(ONES, ONES, C=C) is C
        assert (np.asarray(C) == 2).all()
        tried("operand: subclass with plain numbers", 3)


def test_a_masked_cuda_array(device, on_device, tried):
    """cuda.core reads it, and refuses the mask; the device's number is what fastsgemm asks the driver."""
    bits = Interface({"shape": (2, 2), "typestr": "|b1", "data": (1 << 20, False), "version": 3})
    interface = {"shape": (2, 2), "typestr": "<f4", "data": (1 << 20, False), "version": 3, "mask": bits}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays.CudaArrayInterface, "device_of", lambda self, x: 0)
        for operands in ((Interface(interface), on_device(ONES)), (on_device(ONES), Interface(interface))):
            with pytest.raises(OperandError, match="mask is not supported"):
                sgemm(*operands, C=on_device(ONES), rung="naive", config=BlockConfig(32, 32))
            tried("operand: elements with a mask or a unit", 1)
    assert device.launched == []


# Tensors without memory of their own


def hostile_tensors(torch):
    """(what it is, the tensor, what must be said of it)."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), options=None):
            raise AssertionError("the numbers are somewhere else")

    class Unit(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            return super().__torch_function__(function, types, arguments, options)

    ones = torch.ones(2, 2)
    freed = torch.ones(2, 2)
    slice_of_freed = freed[1:]
    freed.untyped_storage().resize_(0)  # as FSDP frees parameters
    own = "redefines operations"
    yield "zero", torch._efficientzerotensor((2, 2)), "has no memory"
    yield "freed", freed, "has no memory"
    yield "slice of freed", slice_of_freed, "has no memory"
    yield "nested", torch.nested.nested_tensor([ones, ones]), "is a nested tensor"
    yield "jagged", torch.nested.nested_tensor([ones, ones], layout=torch.jagged), own
    yield "fake", FakeTensorMode().from_tensor(ones), own
    yield "masked", torch.masked.masked_tensor(ones, ones > 0), own
    yield "wrapped", torch.Tensor._make_wrapper_subclass(Wrapped, (2, 2), dtype=torch.float32), own
    yield "unit", ones.as_subclass(Unit), own
    yield "uninitialized", torch.nn.UninitializedParameter(), own
    yield "csr", ones.to_sparse_csr(), "is stored as torch.sparse_csr"
    yield "sparse", ones.to_sparse(), "is stored as torch.sparse_coo"
    yield "quantized", torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8), "must be float32, got torch.qint8"
    yield "conjugate", torch.ones(2, 2, dtype=torch.complex64).conj(), "must be float32, got torch.complex64"
    yield "learned", ones.clone().requires_grad_(), "requires grad"


def test_tensors_without_memory_of_their_own(torch, tried):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # half of these kinds are deprecated, the other half are prototypes
        for _, tensor, message in hostile_tensors(torch):
            tried("operand: tensor without numbers of its own", refused(tensor, (OperandError, DTypeError), message))


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize"])
def test_tensors_inside_a_transform(torch, transform, tried):
    ones = torch.ones(2, 2)

    def inside(x):
        what = {"grad": "requires grad", "jvp": "has a tangent"}.get(transform, "has no memory")
        for each in (x, x[1:]):
            tried("operand: tensor without numbers of its own", refused(each, OperandError, what))
        return x.sum()

    calls = {
        "vmap": lambda: torch.vmap(inside)(torch.ones(3, 2, 2)),
        "grad": lambda: torch.func.grad(inside)(ones),
        "jvp": lambda: torch.func.jvp(inside, (ones,), (ones,)),
        "functionalize": lambda: torch.func.functionalize(inside)(ones),
    }
    calls[transform]()


def test_a_tensor_with_a_tangent(torch, tried):
    forward_ad = torch.autograd.forward_ad
    ones = torch.ones(2, 2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2, 2), ones)
        tried("operand: tensor without numbers of its own", refused(dual, OperandError, "has a tangent"))
        assert (sgemm(ones, forward_ad.unpack_dual(dual).primal.detach()) == 2).all()  # others are taken meanwhile


def test_hostile_tensors_as_the_device_path_reads_them(torch, tried):
    """A tensor's view for a launch carries the same fault; on a CPU tensor the same attributes are read."""
    library = arrays.library(torch.ones(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [(*rest, library) for _, *rest in hostile_tensors(torch)]
    for tensor, message, library in found:
        if "redefines operations" in message:
            continue  # refused by its class, before anything is read
        address, meta = library.view(tensor, 0, True, [])
        assert address == 0 and message in str(meta.fault("A"))
        tried("operand: tensor without numbers of its own", 1)
    plain = torch.ones(2, 3)
    assert library.view(plain, 0, True, []) == (plain.data_ptr(), Meta((2, 3), (3, 1), device=-1))
    assert library.view(torch.ones(0, 3), 0, True, [])[1].fault is None  # has no memory and needs none


@pytest.mark.gpu
def test_cuda_tensors_without_memory_of_their_own(torch):
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no device")
    ones, C = torch.ones(2, 2, device="cuda"), torch.full((2, 2), 7.5, device="cuda")
    freed = torch.ones(2, 2, device="cuda")
    slice_of_freed = freed[1:]
    freed.untyped_storage().resize_(0)
    for tensor, message in (
        (torch._efficientzerotensor((2, 2), device="cuda"), "A has no memory"),
        (freed, "A has no memory"),
        (slice_of_freed, "A has no memory"),
        (torch.nested.nested_tensor([ones, ones]), "A is a nested tensor"),
        (ones.to_sparse(), "A is stored as torch.sparse_coo"),
        (ones.to_sparse_csr(), "A is stored as torch.sparse_csr"),
    ):
        for out in (C, None):
            with pytest.raises(OperandError, match=message):
                sgemm(tensor, ones, C=out)
    assert (C == 7.5).all()


def test_a_faulty_shape_does_not_hide_the_fault(device, on_device, monkeypatch, tried):
    class Nested:
        def __dlpack_device__(self):
            return (2, 0)

    class Library(type(arrays.library(on_device(ONES)))):
        def view(self, x, handle, ordered, kept):
            return 0, Meta((), (), fault=lambda name: OperandError(f"{name} is a nested tensor"))

    monkeypatch.setitem(arrays.by_type, Nested, Library())
    for operands, name in (((on_device(ONES), Nested()), "B"), ((Nested(), on_device(ONES)), "A")):
        with pytest.raises(OperandError, match=f"{name} is a nested tensor"):
            sgemm(*operands)
        tried("operand: tensor without numbers of its own", 1)
    assert device.launched == []


# JAX, by what it shows of itself


@pytest.fixture
def jax_array(monkeypatch):
    """A class that is to fastsgemm what jax.Array is."""

    class Array:
        deleted, dtype = False, np.dtype("f4")

        def is_deleted(self):
            return self.deleted

        def devices(self):
            if self.deleted:
                raise RuntimeError("Array has been deleted")
            return {"cpu"}

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            raise AssertionError("nothing may be exported")

        def __array__(self, *arguments, **options):
            raise RuntimeError("Array has been deleted")

    class Tracer:  # as in JAX, it is an instance of Array only by a metaclass
        pass

    class Extended:
        def __str__(self):
            return "key<fry>"

    jax = SimpleNamespace(
        Array=Array,
        core=SimpleNamespace(Tracer=Tracer),
        dtypes=SimpleNamespace(extended=Extended, issubdtype=lambda dtype, kind: isinstance(dtype, kind)),
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.core", jax.core)
    monkeypatch.setattr(arrays, "_instances", {})
    return jax


def test_jax_arrays_without_numbers(jax_array, tried):
    deleted, key = jax_array.Array(), jax_array.Array()
    deleted.deleted, key.dtype = True, jax_array.dtypes.extended()

    class ShapeDtypeStruct:
        shape, dtype = (2, 2), np.dtype("f4")

    ShapeDtypeStruct.__module__ = "jax._src.core"
    for thing, error, message in (
        (deleted, OperandError, "was deleted"),
        (key, DTypeError, "must be float32, got key<fry>"),
        (jax_array.Array(), OperandError, "could not be read: Array has been deleted"),  # deleted by another thread
        (ShapeDtypeStruct(), DTypeError, "operands must be arrays .* got jax._src.core"),
        (jax_array.Array, DTypeError, "operands must be arrays .* got the class "),
    ):
        tried("operand: JAX array without numbers", refused(thing, error, message))


def test_real_jax(tried):
    jax = pytest.importorskip("jax")
    deleted = jax.numpy.ones((2, 2))
    deleted.delete()
    for thing, error, message in (
        (deleted, OperandError, "was deleted"),
        (jax.random.key(0), DTypeError, "must be float32, got key<fry>"),
        (jax.ShapeDtypeStruct((2, 2), np.float32), DTypeError, "operands must be arrays .* got jax"),
    ):
        tried("operand: JAX array without numbers", refused(thing, error, message))


# Protocols that answer nonsense


def used_capsule():
    class Owner:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            return capsule

    capsule = ONES.__dlpack__()
    np.from_dlpack(Owner())
    return capsule


NO_DEVICE = [None, 3, "10", (), (1,), (1, 0, 0), ("x", 0), (1, "x"), (1.5, 0), (None, None), KeyError("device")]
NO_CAPSULE = [None, 3, "dltensor", (1, 2), KeyError("capsule"), AttributeError("capsule"), ZeroDivisionError()]


@pytest.mark.parametrize("device", NO_DEVICE, ids=repr)
def test_a_dlpack_device_that_is_none(device, tried):
    message = "__dlpack_device__ must return a device type and a device number, got "
    if not isinstance(device, Exception):
        message += r"\(?.*" if isinstance(device, tuple) else repr(device)
    tried("protocol: DLPack", refused(Answering(device), OperandError, message))


@pytest.mark.parametrize("capsule", [*NO_CAPSULE, used_capsule()], ids=lambda x: type(x).__name__)
def test_a_dlpack_capsule_that_is_none(capsule, tried):
    tried("protocol: DLPack", refused(Answering((1, 0), capsule), OperandError, r"Answering\) could not be read"))


@pytest.mark.parametrize("capsule", [*NO_CAPSULE, used_capsule()], ids=lambda x: type(x).__name__)
def test_a_dlpack_capsule_that_is_none_among_device_arrays(device, on_device, capsule, tried):
    with pytest.raises(OperandError, match="Answering could not be exported"):
        sgemm(on_device(ONES), Answering((2, 0), capsule), C=on_device(ONES))
    assert device.launched == []
    tried("protocol: DLPack")


@given(kind=st.integers(-20, 20), number=st.integers(-(2**40), 2**40))
@settings(max_examples=200)
def test_the_device_that_dlpack_names_is_the_host_a_real_number_or_an_error(tried, kind, number):
    x = Answering((kind, number))
    if kind in (1, 3):
        assert arrays.Library().device_of(x) == arrays.HOST
    elif kind in (2, 13) and number >= 0:
        assert arrays.Library().device_of(x) == number
    else:
        with pytest.raises(DeviceMismatchError, match=f"{number if kind in (2, 13) else kind}"):
            arrays.Library().device_of(x)
    tried("protocol: DLPack")


@pytest.mark.parametrize("kind", [2, 13])
def test_a_negative_cuda_device_is_not_the_host(kind, tried):
    message = "Answering reports CUDA device -1"
    tried("protocol: DLPack", refused(Answering((kind, -1), ONES.__dlpack__()), DeviceMismatchError, message))


GOOD = {"shape": (2, 2), "typestr": "<f4", "data": (1 << 20, False), "version": 3}
NO_INTERFACE = [None, 3, [], {}, {**GOOD, "data": None}, {**GOOD, "data": (None, False)}, {**GOOD, "data": (1,)}]
NO_INTERFACE += [{**GOOD, "data": ("x", False)}, {**GOOD, "version": None}, {**GOOD, "version": "3"}, KeyError("data")]
NO_INTERFACE += [{name: value for name, value in GOOD.items() if name != left_out} for left_out in ("data", "version")]


@pytest.mark.parametrize("interface", NO_INTERFACE, ids=repr)
def test_a_cuda_array_interface_that_is_none(interface, tried):
    message = r"Interface\.__cuda_array_interface__ (must be a dictionary|failed)"
    tried("protocol: CUDA array interface", refused(Interface(interface), OperandError, message))


def test_protocols_that_are_not_even_there(tried):
    class Raising:
        @property
        def __dlpack__(self):
            raise ZeroDivisionError("one over nought")

    tried("protocol: DLPack", refused(Raising(), OperandError, r"Raising\.__dlpack__ failed: one over nought"))


def test_an_array_namespace_that_is_none(tried):
    class Nameless:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            return ONES.__dlpack__(**options)

        def __array_namespace__(self):
            raise TypeError("which version?")

    with pytest.raises(OperandError, match=r"cannot make a new .*Nameless; pass C"):
        sgemm(Nameless(), ONES)
    tried("protocol: array namespace")


STREAMS = [None, 3, (), (0,), (0, None), ("0", 5), (0, 1.5), (0, -5), (None, 5), KeyError("stream")]


@pytest.mark.parametrize("answer", STREAMS, ids=repr)
def test_a_stream_that_answers_nonsense(device, on_device, answer, tried):
    class Stream:
        def __cuda_stream__(self):
            return give(answer)

    with pytest.raises(StreamError, match="__cuda_stream__ must return a"):
        sgemm(on_device(ONES), on_device(ONES), C=on_device(ONES), stream=Stream())
    assert device.launched == []
    tried("protocol: stream")


def test_a_scalar_that_only_claims_to_be_a_number(tried):
    class Claimed(float.__base__):
        def __float__(self):
            raise ValueError("not today")

    import numbers

    numbers.Real.register(Claimed)
    for name in ("alpha", "beta"):
        with pytest.raises(ScalarError, match=f"{name} must be a real number, got Claimed: not today"):
            checks.scalar(name, Claimed())
        tried("scalar that is no number")


# What is remembered


def test_classes_are_not_kept(torch, tried):
    """20 classes each of three kinds were multiplied; none is alive once it is dropped."""
    seen = []
    for _ in range(20):
        for base, make in (
            (np.ndarray, lambda cls: ONES.view(cls)),
            (torch.Tensor, lambda cls: torch.ones(2, 2).as_subclass(cls)),
            (Answering, lambda cls: cls((1, 0), ONES.__dlpack__())),
        ):
            cls = type("Passing", (base,), {})
            sgemm(ONES, make(cls))
            seen.append(weakref.ref(cls))
            del cls
    gc.collect()
    assert [each() for each in seen if each() is not None] == []
    tried("class dropped after use", len(seen))


def test_the_libraries_own_classes_are_found_by_one_look_up(torch):
    for x in (ONES, torch.ones(1), torch.nn.Parameter(torch.ones(1), requires_grad=False)):
        assert arrays.library(x) is arrays.by_type[type(x)]
