"""PTX text to plain data: the kernels of a module and their instructions, each with its CUDA source line.

This is syntax only; `fastsgemm.sim.program` decides which instructions exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from fastsgemm.sim.errors import PtxError

SIZES = {f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64)}


class SourceLine(Struct, frozen=True, order=True, gc=False):
    """A line of CUDA source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Register(Struct, frozen=True, gc=False):
    """A register of a thread, by its name, unique in the kernel."""

    name: str


class Constant(Struct, frozen=True, gc=False):
    """A number in the instruction: its bits, and whether they were given as a float."""

    bits: int
    floating: bool = False


class Symbol(Struct, frozen=True, gc=False):
    """A name: a label, a parameter, a variable or a special register such as ``%tid.x``."""

    name: str


class Address(Struct, frozen=True, gc=False):
    """``[base + offset]``."""

    base: Register | Symbol | Constant
    offset: int


class BoxAddress(Struct, frozen=True, gc=False):
    """``[map, {x, y, ...}]``: the box of a tensor that begins at these coordinates."""

    map: Operand
    coordinates: Vector


class Vector(Struct, frozen=True, gc=False):
    """``{a, b, ...}``."""

    items: tuple[Operand, ...]


Operand = Register | Constant | Symbol | Address | BoxAddress | Vector


class Guard(Struct, frozen=True, gc=False):
    """``@%p`` or ``@!%p`` before an instruction."""

    register: Register
    negated: bool


class Instruction(Struct, frozen=True, gc=False):
    """One instruction."""

    opcode: str  # with all its dots, for example `ld.shared.v4.f32`
    operands: tuple[Operand, ...]  # in the order of the text, the destination first
    guard: Guard | None
    where: SourceLine | None  # the innermost line it comes from
    caller: SourceLine | None  # the line that the function around `where` was inlined at
    text: str
    used_bytes: int | None = None  # how many of the loaded bytes are used, if the compiler notes it

    @property
    def place(self) -> str:
        """The source line, for messages."""
        if self.where is None:
            return "an unknown line"
        return f"{self.where}" + (f" (inlined at {self.caller})" if self.caller else "")


class Parameter(Struct, frozen=True):
    """A parameter of a kernel."""

    name: str
    type: str  # PTX type; if it is an array, of an element
    extent: int = 0  # elements of an array, which is how PTX has a struct; 0 for a scalar

    @property
    def size(self) -> int:
        """Bytes."""
        return SIZES[self.type] * max(self.extent, 1)


@dataclass
class Kernel:
    """One ``.entry``."""

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)  # PTX type by name; a numbered family has its prefix only
    constants: dict[str, bytes] = field(default_factory=dict)  # values of variables in constant memory
    shared: dict[str, int] = field(default_factory=dict)  # offsets of variables; dynamic shared memory lies behind them
    static_shared: int = 0  # bytes that those variables need
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # index of the instruction that follows each label
    cluster: tuple[int, ...] = (1, 1, 1)  # blocks of a cluster along x, y and z
    max_threads: int | None = None  # threads of a block that the kernel is compiled for (`__launch_bounds__`)

    def type_of(self, register: Register) -> str:
        """Return the declared PTX type of a register."""
        name = register.name
        declared = self.registers.get(name) or self.registers.get(name.rstrip("0123456789"))
        if declared is None:
            raise PtxError(f"register {name} of kernel {self.name} is not declared")
        return declared


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*inlined_at\s+(\d+)\s+(\d+)\s+\d+)?")
_SHARED = re.compile(r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(\[\d*\])?")
_CONSTANT = re.compile(r"\.const\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)(\[\d*\])?(?:\s*=\s*([^;]*))?;")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)")
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr[^,]*?\s)?([\w$]+)(\[\d+\])?\s*$")
_USED = re.compile(r'\.pragma\s+"used_bytes_mask\s+(\w+)"')  # the compiler's note on the next load
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+),\s*(\d+),\s*(\d+)")
_MAX_THREADS = re.compile(r"\.maxntid\s+(\d+)")
_DIRECTIVE = re.compile(r"\.[a-z]\w*")
# The directives of an entry that say nothing about what a launch does, or that are read.
_KNOWN_DIRECTIVES = {".maxntid", ".minnctapersm", ".maxnreg", ".reqnctapercluster", ".explicitcluster", ".pragma"}
_LINE = (".loc ", ".loc\t")
# Declarations for local memory and for calls of functions, which `program` refuses where they are used.
_NOT_READ = (".local", ".param", ".callprototype")
# A brace of a block, a label, a position in the source, or what a semicolon ends.
_STATEMENT = re.compile(r"[\s;]*([{}]|[\w$]+:|\.loc[ \t][^\n]*(?=\n)|[^{};\s][^;]*(?=;))")
_INSTRUCTION = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,|\s]+")  # ``%p|%q`` counts as two operands
_BOX = re.compile(r"\[\s*([%\w$]+)\s*,\s*(\{[^}]*\})\s*\]")
_ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]")


def parse(text: str) -> dict[str, Kernel]:
    """Return the kernels of a PTX module by name.

    Raises
    ------
    PtxError
        The text is not what NVRTC writes.
    """
    files = {int(number): path for number, path in _FILE.findall(text)}
    text = _COMMENT.sub("", text)
    first_entry = text.find(".entry")
    shared = _SHARED.findall(text[: max(first_entry, 0)])
    constants = {match[2]: _constant(match) for match in _CONSTANT.finditer(text)}
    kernels = {}
    for match in _ENTRY.finditer(text):
        unknown = sorted({*_DIRECTIVE.findall(match[3])} - _KNOWN_DIRECTIVES)
        if unknown:
            raise PtxError(f"kernel {match[1]} has directives that are not simulated: {unknown}")
        cluster = _CLUSTER.search(match[3])
        size = tuple(map(int, cluster.groups())) if cluster else (1, 1, 1)
        bound = _MAX_THREADS.search(match[3])
        threads = int(bound[1]) if bound else None
        kernel = Kernel(match[1], _parameters(match[2]), constants=constants, cluster=size, max_threads=threads)
        body = _Body(kernel, files)
        for variable in shared:
            body.declare_shared(*variable)
        body.read(text, match.end())
        kernels[match[1]] = body.finish()
    return kernels


def _parameters(text: str) -> list[Parameter]:
    parameters = []
    for part in filter(None, map(str.strip, text.split(","))):
        match = _PARAMETER.match(part)
        if match is None or (match[3] and match[1] != "b8"):
            raise PtxError(f"cannot read the parameter {part!r}; only scalars, pointers and structs can be passed")
        parameters.append(Parameter(match[2], match[1], int((match[3] or "[0]")[1:-1])))
    return parameters


def _constant(match: re.Match[str]) -> bytes:
    """Return the bytes of a variable in constant memory. What has no value is zero."""
    kind, name, extent, values = match.groups()
    size = SIZES[kind]
    numbers = re.findall(r"[^\s,{}]+", values or "")
    try:
        bits = [int(re.sub("^0f", "0x", each), 0) % (1 << 8 * size) for each in numbers]
    except ValueError as error:
        raise PtxError(f"cannot read the value of {name}, {values!r}; only numbers can be constants") from error
    data = b"".join(each.to_bytes(size, "little") for each in bits)
    return data.ljust(size * int((extent or "[1]")[1:-1]), b"\0")


class _Body:
    """The state while the body of one kernel is read."""

    def __init__(self, kernel: Kernel, files: dict[int, str]) -> None:
        self.kernel = kernel
        self.files = files
        self.operands: dict[str, Operand] = {}  # those outside of inner blocks, by their text
        self.scopes: list[dict[str, str]] = [{}]  # names of an inner block are renamed: inline PTX reuses them
        self.renamed = 0
        self.where: SourceLine | None = None
        self.caller: SourceLine | None = None
        self.used_bytes: int | None = None
        self.dynamic: list[str] = []

    def read(self, text: str, at: int) -> None:
        """Read the statements of the body that begins at `at` or later."""
        statement = "the end of the text"
        try:
            for statement in _statements(text, text.index("{", at) + 1):
                self._statement(statement)
        except (ValueError, LookupError) as error:  # malformed numbers, and unknown names
            raise PtxError(f"cannot read kernel {self.kernel.name} at or after {statement!r}") from error

    def _statement(self, statement: str) -> None:
        if statement[0] not in "{}." and statement[-1] != ":":
            self.kernel.instructions.append(self._instruction(statement))
        elif statement == "{":
            self.scopes.append({})
        elif statement == "}":
            self.scopes.pop()
        elif statement.startswith(_LINE):
            self._loc(statement)
        elif statement.startswith(".reg"):
            self._registers(statement)
        elif statement.startswith(".shared"):
            match = _SHARED.match(statement)
            if match is None:
                raise PtxError(f"cannot read the variable {statement!r}")
            self.declare_shared(*match.groups(default=""))
        elif statement.endswith(":"):
            self.kernel.labels[statement[:-1]] = len(self.kernel.instructions)
        elif statement.startswith(".pragma"):
            used = _USED.match(statement)
            self.used_bytes = bin(int(used[1], 0)).count("1") if used else self.used_bytes
        elif not statement.startswith(_NOT_READ):
            raise PtxError(f"cannot read {statement!r}")

    def finish(self) -> Kernel:
        end = -(-self.kernel.static_shared // 16) * 16
        self.kernel.shared.update(dict.fromkeys(self.dynamic, end))
        return self.kernel

    def declare_shared(self, align: str, kind: str, name: str, extent: str) -> None:
        size = SIZES[kind] * int(extent[1:-1] or 0 if extent else 1)
        if not size:  # extern: the launch gives the size
            self.dynamic.append(name)
            return
        step = int(align or SIZES[kind])
        start = -(-self.kernel.static_shared // step) * step
        self.kernel.shared[name] = start
        self.kernel.static_shared = start + size

    def _loc(self, statement: str) -> None:
        match = _LOC.match(statement)
        if match is None:
            raise PtxError(f"cannot read {statement!r}")
        if match[2] == "0":  # line 0: code that the compiler added to the line before
            return
        self.where = SourceLine(self.files.get(int(match[1]), "?"), int(match[2]))
        self.caller = SourceLine(self.files.get(int(match[3]), "?"), int(match[4])) if match[3] else None

    def _registers(self, statement: str) -> None:
        _, kind, names = statement.split(None, 2)
        for name in map(str.strip, names.split(",")):
            base = name.partition("<")[0]
            unique = base
            if len(self.scopes) > 1:
                self.renamed += 1
                unique = f"{base}${self.renamed}$"
                self.scopes[-1][base] = unique
            self.kernel.registers[unique] = kind.removeprefix(".")

    def _instruction(self, statement: str) -> Instruction:
        match = _INSTRUCTION.fullmatch(statement)
        if match is None:
            raise PtxError(f"cannot read {statement!r}")
        guard = None
        if match[2]:
            register = self._name(match[2])
            if not isinstance(register, Register):
                raise PtxError(f"the guard of {statement!r} is no register")
            guard = Guard(register, match[1] == "!")
        operands = tuple(map(self._operand, _OPERAND.findall(match[4])))
        used, self.used_bytes = self.used_bytes, None
        text = " ".join(statement.split())
        return Instruction(match[3], operands, guard, self.where, self.caller, text, used)

    def _operand(self, text: str) -> Operand:
        if len(self.scopes) > 1:  # a name may be of an inner block
            return self._read_operand(text)
        if text not in self.operands:
            self.operands[text] = self._read_operand(text)
        return self.operands[text]

    def _read_operand(self, text: str) -> Operand:
        if text.startswith("{"):
            return Vector(tuple(map(self._operand, _OPERAND.findall(text[1:-1]))))
        if text.startswith("["):
            box = _BOX.fullmatch(text)
            if box is not None:
                coordinates = self._operand(box[2])
                assert isinstance(coordinates, Vector)
                return BoxAddress(self._operand(box[1]), coordinates)
            match = _ADDRESS.fullmatch(text)
            if match is None:
                raise PtxError(f"cannot read the address {text!r}")
            base = self._operand(match[1])
            assert isinstance(base, Register | Symbol | Constant)
            return Address(base, int(match[2] or "0", 0))
        if text[:2] in ("0f", "0F", "0d", "0D"):
            return Constant(int(text[2:], 16), floating=True)
        if text[0].isdigit() or text[0] == "-":
            return Constant(int(text.rstrip("U"), 0))
        return self._name(text)

    def _name(self, text: str) -> Register | Symbol:
        for scope in reversed(self.scopes):
            if text in scope:
                return Register(scope[text])
        known = self.kernel.registers
        if text in known or text.rstrip("0123456789") in known:
            return Register(text)
        return Symbol(text)


def _statements(text: str, at: int) -> Iterator[str]:
    """Yield the statements of a body, braces of inner blocks among them, up to the brace that ends it."""
    depth = 1
    while True:
        match = _STATEMENT.match(text, at)
        if match is None:
            raise ValueError("the text ends inside a kernel")
        statement, at = match[1].rstrip(), match.end()
        depth += {"{": 1, "}": -1}.get(statement, 0)
        if depth == 0:
            return
        yield statement
