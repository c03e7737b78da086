"""A rule of a config: one row, which gives the predicate, its message and the kernel's ``static_assert``.

A row consists of expressions in C++ syntax: names, integers, ``+ - * / %``, ``max``, comparisons, ``!``, ``&&`` and
``||``. A name is a constant, or a property of the config in upper case, such as THREADS. Integers are divided as in
C++; none is negative. ``tools/write_rules.py`` writes the rows into ``cuda_src``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Struct

from fastsgemm.config.constant import (
    BOOKKEEPING_REGISTERS,
    LEAST_THREADS,
    MAX_REGISTERS,
    MAX_THREADS,
    VECTOR,
    WARP,
    Violation,
)

NAME = r"\b[A-Z][A-Z_]*\b"  # a pattern


# How a quantity {q}, a product or quotient, compares with a bound {b}: in words, and as an expression.
Relation = tuple[str, str]
MULTIPLE_OF: Relation = ("a multiple of {b}", "{q} % ({b}) == 0")
DIVISOR_OF: Relation = ("a divisor of {b}", "{b} % {q} == 0")
AT_LEAST: Relation = ("at least {b}", "{q} >= {b}")
AT_MOST: Relation = ("at most {b}", "{q} <= {b}")
EQUAL_TO: Relation = ("{b}", "{q} == {b}")
VECTORS_OF: Relation = ("1, 2 or a multiple of {b}", "{q} < 3 || {q} % {b} == 0")
POWER_OF_TWO: Relation = ("a power of two", "({q} & ({q} - 1)) == 0")


class Rule(Struct, frozen=True):
    """One rule."""

    quantity: str  # an expression: the limited quantity
    relation: Relation
    bound: str  # an expression; SHARED_LIMIT is the shared memory that a block may opt in to on the device, in bytes
    reason: str
    where: str = ""  # an expression: the rule applies only if it is true
    name: str = ""  # the quantity in messages; by default its expression
    unit: str = ""  # appended to the values of quantity and bound in messages

    @property
    def condition(self) -> str:
        """The rule as an expression."""
        condition = self.relation[1].format(q=self.quantity, b=self.bound)
        return f"!({self.where}) || {condition}" if self.where else condition

    def violation(self, config: Any, shared_limit: int) -> Violation:
        """Return how a config breaks the rule."""
        value, bound = (evaluate(expression, config, shared_limit) for expression in (self.quantity, self.bound or "0"))
        by_name = f"{self.bound} = " if re.search(NAME, self.bound) and self.bound != "SHARED_LIMIT" else ""
        limit = self.relation[0].format(b=f"{by_name}{bound}{self.unit}")
        where = f" where {self.where}" if self.where else ""
        return Violation(self.name or self.quantity, limit + where, f"{value}{self.unit}", self.reason)


Group = tuple[Rule, ...]
Predicate = Callable[[Any, int], int]  # of a config and SHARED_LIMIT


def violations(family: Any, config: Any, shared_limit: int) -> list[Violation]:
    """Return the violations of the first group that has any: each relies on the checks of those before."""
    for all_hold, group in _groups(family):
        if not all_hold(config, shared_limit):
            return [rule.violation(config, shared_limit) for rule, holds in group if not holds(config, shared_limit)]
    return []


def evaluate(expression: str, config: Any, shared_limit: int = 0) -> int:
    """Return the value of an expression for a config."""
    return _compiled(expression, config.__class__)(config, shared_limit)


@cache
def _groups(family: Any) -> list[tuple[Predicate, list[tuple[Rule, Predicate]]]]:
    """Return for each group a predicate for all of its rules, and each rule with its own predicate."""
    groups = [[(rule, rule.condition) for rule in group] for group in family.RULES]
    conjunctions = [" && ".join(f"({condition})" for _, condition in group) for group in groups]
    return [
        (_compiled(conjunction, family), [(rule, _compiled(condition, family)) for rule, condition in group])
        for conjunction, group in zip(conjunctions, groups, strict=True)
    ]


@cache
def _compiled(expression: str, family: Any) -> Predicate:
    def to_python(name: re.Match[str]) -> str:
        if name[0] == "SHARED_LIMIT":
            return name[0]
        return f"config.{name[0] if name[0] in family.declared() else name[0].lower()}"

    text = re.sub(NAME, to_python, expression).replace("/", "//").replace("&&", "and").replace("||", "or")
    return eval(f"lambda config, SHARED_LIMIT: {re.sub('!(?!=)', ' not ', text)}")  # type: ignore[no-any-return]


# Rows and terms that several families share.

TILES = "4 * BK * (BM + BN)"  # bytes of a tile of A and one of B
THREADS_OF_WARPS = f"{WARP} * (BM / WM) * (BN / WN)"

THREAD_TILES_M = Rule("BM", MULTIPLE_OF, "TM", "thread tiles cover the block tile")
THREAD_TILES_N = Rule("BN", MULTIPLE_OF, "TN", "thread tiles cover the block tile")

_SUBTILES = f"{WARP} * TM * TN * WNITER"  # elements of C in the WNITER sub-tiles of a warp that lie side by side
WARP_TILES: Group = (
    Rule("BM", MULTIPLE_OF, "WM", "warp tiles cover the block tile"),
    Rule("BN", MULTIPLE_OF, "WN", "warp tiles cover the block tile"),
    Rule("WM * WN", MULTIPLE_OF, _SUBTILES, "sub-tiles cover the warp tile"),
    Rule(_SUBTILES, MULTIPLE_OF, "WN", "sub-tiles cover the warp tile"),
    Rule("WN", MULTIPLE_OF, "WNITER", "thread tiles cover a sub-tile"),
    Rule(f"{_SUBTILES} / WN", MULTIPLE_OF, "TM", "thread tiles cover a sub-tile"),
    Rule("WN / WNITER", MULTIPLE_OF, "TN", "thread tiles cover a sub-tile"),
)
WHOLE_VECTORS = "floats are read and written 16 bytes at a time"


def outer_product(rows: str, columns: str) -> str:
    """Return the registers of accumulators, fragments and bookkeeping of an outer product."""
    return f"{rows} * {columns} + {rows} + {columns} + {BOOKKEEPING_REGISTERS}"


def threads(threads: str, least: int = LEAST_THREADS) -> Group:
    """Return the rules for the threads of a block, given by the expression `threads`."""
    bounds = ((MULTIPLE_OF, WARP), (AT_LEAST, least), (AT_MOST, MAX_THREADS))
    name, reason = f"threads of a block, {threads},", f"whole warps, {least} to {MAX_THREADS} threads"
    return tuple(Rule("THREADS", relation, f"{bound}", reason, name=name) for relation, bound in bounds)


def copies(floats: int) -> Group:
    """Return the rules for tiles that all threads copy, `floats` at a time."""
    step, reason = f"{floats} * THREADS" if floats > 1 else "THREADS", "the threads share out each tile evenly"
    return (Rule("BM * BK", MULTIPLE_OF, step, reason), Rule("BK * BN", MULTIPLE_OF, step, reason))


def vectors(*names: str) -> Group:
    """Return the rules of extents that are read or written 16 bytes at a time."""
    return tuple(Rule(name, MULTIPLE_OF, f"{VECTOR}", WHOLE_VECTORS) for name in names)


def shared(given_by: str) -> Rule:
    """Return the rule for the dynamic shared memory of a block; `given_by` is its expression or its constants."""
    name = f"shared memory of a block, {given_by},"
    return Rule("SHARED_BYTES", AT_MOST, "SHARED_LIMIT", "the limit of this device", name=name, unit=" bytes")


def registers(given_by: str) -> Rule:
    """Return the rule for the registers of a thread; `given_by` says what they hold."""
    name = f"registers of a thread, {given_by},"
    return Rule("LEAST_REGISTERS", AT_MOST, f"{MAX_REGISTERS}", "the limit of a thread", name=name)
