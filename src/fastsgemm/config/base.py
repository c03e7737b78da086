"""`Config`, from which the class of each kernel family derives directly."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from fastsgemm import arguments
from fastsgemm.config.constant import Constant, Violation, shown
from fastsgemm.config.rules import Group, evaluate, violations
from fastsgemm.errors import ConfigError


@dataclass(frozen=True, repr=False)
class Config:
    """The constants of a kernel. This is the base class; `Rung.config` is the class that a rung takes.

    Parameters
    ----------
    BM, BN : int
        Rows and columns of C that a block computes.

    Raises
    ------
    ConfigError
        A constant is not an int, or the base class itself is called.
    """

    BM: Annotated[int, Constant("rows of C that a block computes")]
    BN: Annotated[int, Constant("columns of C that a block computes")]

    STEPS: ClassVar[int] = 1  # of k in a tile, for a kernel without the constant BK
    # Expressions in the syntax of `fastsgemm.config.rules`: the property of the same name gives the value.
    THREADS: ClassVar[str]
    SHARED_BYTES: ClassVar[str] = "0"
    LEAST_REGISTERS: ClassVar[str]
    RULES: ClassVar[tuple[Group, ...]]  # each group relies on the checks of those before

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Refuse the base class, which belongs to no kernel."""
        if cls is Config:
            raise ConfigError(
                "fastsgemm.Config is the base class of the configs; use the class of a rung, "
                "such as fastsgemm.PipelinedConfig or fastsgemm.RUNGS[8].config"
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int:
                number = arguments.integer(value)
                if number is None:
                    raise ConfigError(f"constant {name} must be an int, got {value!r}")
                object.__setattr__(self, name, number)

    @classmethod
    def declared(cls) -> Mapping[str, Constant]:
        """Return the declarations of the constants by name, in the order of the fields."""
        return _declared(cls)  # type: ignore[arg-type]  # mypy takes the __hash__ of the instances

    @classmethod
    def from_constants(cls, constants: Mapping[str, Any]) -> Self:
        """Make a config of named constants.

        Raises
        ------
        ConfigError
            A constant is unknown, missing, not an int or out of its range.
        """
        declared = cls.declared()
        if not constants.keys() <= declared.keys():
            unknown = sorted(constants.keys() - declared.keys())
            raise ConfigError(f"unknown constants {unknown}; {cls.__name__} has {list(declared)}")
        required = _required(cls)  # type: ignore[arg-type]  # mypy takes the __hash__ of the instances
        if not required <= constants.keys():
            raise ConfigError(f"constants {sorted(required - constants.keys())} of {cls.__name__} are missing")
        config = cls(**constants)
        if violations := config.out_of_range():
            raise ConfigError("; ".join(map(str, violations)))
        return config

    @property
    def constants(self) -> dict[str, int]:
        """All constants by name, in the order of the fields."""
        return {name: getattr(self, name) for name in self.declared()}

    @cached_property
    def kernel(self) -> Self:
        """The config without split-K, which is no constant of a kernel: equal for all configs of one kernel."""
        return self if self.split_k == 1 else self.replace(SPLIT_K=1)

    def replace(self, **constants: int) -> Self:
        """Return the config with other values of these constants."""
        return dataclasses.replace(self, **constants)

    @property
    def compiled(self) -> dict[str, int]:
        """The constants that the kernel is compiled for."""
        return {name: value for name, value in self.kernel.constants.items() if name != "SPLIT_K"}

    # For the grid and the cost model.

    @property
    def tile_k(self) -> int:
        """Steps of k in a tile; 1 for a kernel without tiles of A and B."""
        return self._get("BK", self.STEPS)

    @property
    def split_k(self) -> int:
        """Parts of K with blocks of their own; 1 for a kernel that cannot split K."""
        return self._get("SPLIT_K", 1)

    @property
    def sliced_k(self) -> int:
        """Groups of threads of a block that share out k; 1 for a kernel without sliced-K."""
        return self._get("SLICED_K", 1)

    @property
    def segment(self) -> int:
        """Steps of k in each chain of FMAs, whatever K is; 0: K and other constants decide.

        With SPLIT_K = 1 a block adds up the sums of the segments in shared memory. With any other SPLIT_K every segment
        is a part.
        """
        return self._get("SEGMENT", 0)

    def _get(self, constant: str, default: int) -> int:
        return vars(self).get(constant, default)  # type: ignore[no-any-return]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return evaluate(self.THREADS, self)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes."""
        return evaluate(self.SHARED_BYTES, self)

    @property
    def least_registers(self) -> int:
        """A lower bound of the registers per thread."""
        return evaluate(self.LEAST_REGISTERS, self)

    def out_of_range(self) -> list[Violation]:
        """Return a violation for each constant outside its range."""
        value = vars(self)
        invalid = ((name, constant) for name, constant in self.declared().items() if value[name] not in constant.values)
        return [Violation(name, constant.limit, shown(value[name])) for name, constant in invalid]

    def violations(self, shared_limit: int) -> list[Violation]:
        """Return every rule that the config breaks; the empty list if it is legal.

        Parameters
        ----------
        shared_limit : int
            Shared memory that a block may opt in to on the device, in bytes.
        """
        return self.out_of_range() or violations(type(self), self, shared_limit)

    def __str__(self) -> str:
        """Return the constants, without those at their defaults."""
        return " ".join(self._non_defaults())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._non_defaults())})"

    def _non_defaults(self) -> list[str]:
        values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return [f"{field.name}={shown(value)}" for field, value in values if value != field.default]


@cache
def _declared(cls: Any) -> dict[str, Constant]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name].__metadata__[0] for field in dataclasses.fields(cls)}


@cache
def _required(cls: Any) -> frozenset[str]:
    """Return the names of the constants without a default."""
    return frozenset(field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING)
