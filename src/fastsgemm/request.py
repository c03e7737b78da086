"""`Request`: the options of a call of `sgemm`, resolved once where the call begins."""

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
    """How a product is to be computed, as far as the caller specifies."""

    rung: Rung | None = None  # None: chosen for the problem
    config: Config | None = None  # None: chosen for the problem. With precision "ieee" there is a rung that takes it
    precision: str = PRECISIONS[0]  # ``ieee`` or ``fp16x3``; with a rung, that of the rung
    batch_invariant: bool = False  # whether sums have the order of docs/batch-invariance.md; then the rung has it
    split: tuple[bool, bool] = (False, False)  # whether A and B were split before the call
    output: str = "C"  # name of the written array in messages: ``C`` or ``out``
    # The caller's promise on alpha A B: WHOLE none; BOTH that it is symmetric; LOWER and UPPER that, and only this
    # triangle of C is written.
    symmetric: Sym = Sym.WHOLE
    # B is A transposed, in the same memory, so the result is symmetric without a promise.
    gram: bool = False
    # The caller names the arithmetic, a precision or `batch_invariant`, so operands may be bfloat16 or float16.
    takes_halves: bool = False

    @property
    def sym(self) -> Sym:
        """The part of the result to store, for kernels that can compute one triangle."""
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
        return Request(batch_invariant=self.batch_invariant, symmetric=self.symmetric, gram=self.gram)

    @property
    def replaces_halves(self) -> bool:
        """Whether a switch replaces products of two 16-bit operands, which libraries compute on tensor cores.

        FMAs are slower, so it does so only with tensor cores, or if one order of summation is promised.
        """
        return self.precision != PRECISIONS[0] or self.batch_invariant

    @property
    def rounds(self) -> bool:
        """Whether a switch also replaces products of two 16-bit operands whose result has their type.

        Who asks for one order of summation on tensor cores means those of a model in BF16 above all.
        """
        return self.tensor_cores and self.batch_invariant

    @property
    def has_operator(self) -> bool:
        """Whether PyTorch's operator can compute it: it takes no rung or config, and cannot write one triangle only."""
        return self.rung is None and self.config is None and not self.symmetric.leaves_one

    @property
    def tensor_cores(self) -> bool:
        """Whether rung 11 may compute it; it must if it is the rung."""
        return self.precision != PRECISIONS[0]


PLAIN = Request()  # of a call without options
NAMED = Request(takes_halves=True)  # of a call that names the default precision


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
        `config` is not a `Config`, fits no rung, or contradicts `batch_invariant`.
    PrecisionError
        The precision is unknown, or contradicts the rung or `batch_invariant`.
    ArgumentError
        `batch_invariant` or `symmetric` is neither true nor false.
    """
    if rung is not None:
        rung = rungs.find(rung)
    if config is not None and not isinstance(config, Config):
        example = f", such as the {rung.config.__name__} of rung {rung.name}" if rung else ""
        raise ConfigError(f"config must be a fastsgemm.Config{example}, got {type(config).__name__}")
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
    """Return the request of a call with operands that were split before, or that writes another array than C."""
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
    """Return the request for a problem: with a symmetric result, B is A transposed if the layouts allow it."""
    if not problem.symmetric:
        return request
    if problem.layout in ("NT", "TN"):
        return of_gram(request)
    return replace(request, symmetric=Sym.BOTH)
