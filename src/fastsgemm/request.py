"""`Request`: what a caller of `sgemm` asks for besides the operands, resolved once where the call begins."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fastsgemm import arguments, rungs
from fastsgemm.config import Config, F16DirectConfig, Fp16x3Config, Fp16x3MmaConfig
from fastsgemm.errors import ConfigError
from fastsgemm.problem import Problem, Sym
from fastsgemm.rungs import PRECISIONS, Rung


class Request(Struct, frozen=True, cache_hash=True):
    """How a product is to be computed, as far as the caller says so."""

    rung: Rung | None = None  # None: chosen for the problem
    config: Config | None = None  # None: chosen for the problem. With precision "ieee" there is a rung that takes it
    precision: str = PRECISIONS[0]  # ``ieee`` or ``fp16x3``; with a rung, that of the rung
    batch_invariant: bool = False  # whether the order of summation is that of docs/precision.md; then the rung has it
    split: tuple[bool, bool] = (False, False)  # whether A and B were split before the call
    output: str = "C"  # what the caller calls the array that is written, for messages: ``C`` or ``out``
    # What the caller says of alpha A B: WHOLE nothing, BOTH that it is symmetric. LOWER and UPPER: besides, only this
    # triangle of C is written.
    symmetric: Sym = Sym.WHOLE
    # B is A transposed, in the same memory, so that the result is symmetric whatever the caller says of it.
    gram: bool = False
    # The caller names the arithmetic, a precision or `batch_invariant`, so operands may be bfloat16 or float16.
    takes_halves: bool = False

    @property
    def sym(self) -> Sym:
        """What is to be stored of the result, where a kernel can compute one triangle of it."""
        return self.symmetric or (Sym.BOTH if self.gram else Sym.WHOLE)

    @property
    def arithmetic(self) -> str:
        """The precision and the order of summation, for people."""
        return f"precision {self.precision!r}" + (", batch-invariant" if self.batch_invariant else "")

    @property
    def ieee(self) -> Request:
        """The same request without tensor cores."""
        if not self.tensor_cores:
            return self
        return Request(symmetric=self.symmetric, gram=self.gram)

    @property
    def replaces_halves(self) -> bool:
        """Whether a switch replaces products of two 16-bit operands, which others compute on tensor cores.

        FMAs are slower than these, so that is where tensor cores are used, or one order of summation is promised.
        """
        return self.precision != PRECISIONS[0] or self.batch_invariant

    @property
    def has_operator(self) -> bool:
        """Whether PyTorch's operator can compute it: it takes no rung and config, and writes no triangle alone."""
        return self.rung is None and self.config is None and not self.symmetric.leaves_one

    @property
    def tensor_cores(self) -> bool:
        """Whether rung 11 may compute it; it must if it is the rung."""
        return self.precision != PRECISIONS[0]


PLAIN = Request()  # of a caller who asks for nothing
NAMED = Request(takes_halves=True)  # of one who names the default precision


def resolve(
    rung: Any = None,
    config: Any = None,
    precision: str | None = None,
    batch_invariant: bool = False,
    symmetric: bool = False,
) -> Request:
    """Return the request of these arguments of `sgemm`; equal arguments give the same object.

    Raises
    ------
    UnknownRungError
        There is no such rung.
    ConfigError
        `config` is no `Config`, no rung takes it, or it contradicts `batch_invariant`.
    PrecisionError
        There is no such precision, or it contradicts the rung or `batch_invariant`.
    ArgumentError
        `batch_invariant` or `symmetric` is neither true nor false.
    """
    if rung is not None:
        rung = rungs.find(rung)
    if config is not None and not isinstance(config, Config):
        such = f", such as the {rung.config.__name__} of rung {rung.name}" if rung else ""
        raise ConfigError(f"config must be a fastsgemm.Config{such}, got {type(config).__name__}")
    if rung is None and isinstance(config, Fp16x3Config | Fp16x3MmaConfig | F16DirectConfig):
        rung = rungs.find("fp16x3")
    in_order, symmetric = arguments.switch("batch_invariant", batch_invariant), arguments.switch("symmetric", symmetric)
    halves = precision is not None or in_order
    precision = rungs.precision_of(rung, PRECISIONS[0] if precision is None else precision)
    return _resolved(rung, config, precision, in_order, symmetric, halves)


@lru_cache(maxsize=1024)
def _resolved(
    rung: Rung | None, config: Config | None, precision: str, batch_invariant: bool, symmetric: bool, halves: bool
) -> Request:
    batch_invariant = batch_invariant or rung is rungs.SKINNY_IN_ORDER
    if batch_invariant:
        rung, config = rungs.batch_invariant(rung, config, precision)
    elif rung is None and config is not None and precision == PRECISIONS[0]:
        rung = rungs.of_config(config)
    sym = Sym.BOTH if symmetric else Sym.WHOLE
    return Request(rung, config, precision, batch_invariant, symmetric=sym, takes_halves=halves)


@lru_cache(maxsize=1024)
def of_call(request: Request, split: tuple[bool, bool] = (False, False), output: str = "C") -> Request:
    """Return the request of a call whose operands may have been split before, or that writes another array than C."""
    return replace(request, split=split, output=output)


@lru_cache(maxsize=1024)
def of_gram(request: Request) -> Request:
    """Return the request of a call whose B is its A transposed, in the same memory."""
    return replace(request, gram=True)


@lru_cache(maxsize=1024)
def checked(request: Request, gram: bool) -> Request:
    """Return the request of a call whose operands have been checked, equal for all that launch the same.

    `gram` says whether its B is its A transposed, in the same memory.
    """
    return replace(request, gram=gram or request.gram, output="C", takes_halves=False)


def of_problem(request: Request, problem: Problem) -> Request:
    """Return the request for a problem: if its result is symmetric, B is A transposed where the layouts allow that."""
    if not problem.symmetric:
        return request
    if problem.layout in ("NT", "TN"):
        return of_gram(request)
    return replace(request, symmetric=Sym.BOTH)
