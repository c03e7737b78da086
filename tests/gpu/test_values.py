"""Every rung on every shape, layout, alignment and (alpha, beta): against float64, and bit by bit against rung 1.

Rung 10 shares K out among threads: it is held to float64 where the others are held to the bits of one chain.
"""

import itertools
import json
from dataclasses import replace

import pytest

from fastsgemm import (
    BlockConfig,
    PipelinedConfig,
    SharedTileConfig,
    SkinnyConfig,
    ThreadColumnConfig,
    ThreadTileConfig,
    VectorizedConfig,
    WarptiledConfig,
    resources,
    rungs,
    sgemm,
)
from fastsgemm.measure.chains import has_several_chains
from fastsgemm.rungs import IEEE

pytestmark = pytest.mark.gpu

EPSILON = 2.0**-23
GUARD = 12345.0
SHAPES = [
    (1, 1, 1), (2, 2, 2), (31, 33, 17), (33, 31, 127), (127, 129, 65), (129, 127, 31), (131, 257, 67), (1021, 3, 13),
    (3, 1021, 13), (64, 64, 1), (128, 128, 128), (256, 192, 72), (1, 127, 129), (127, 1, 33), (2, 1, 1031),
    (65, 132, 8), (130, 262, 66),
]  # fmt: skip
SCALARS = [(1.0, 0.0), (1.0, 1.0), (-1.5, 0.5), (0.0, 2.0), (0.75, -1.0), (0.0, 0.0)]
LAYOUTS = ["NN", "NT", "TN", "TT"]

# (elements before the first, elements after each line): aligned for 16-byte loads if both are multiples of 4
PLACES = {"dense": (0, 0), "padded": (4, 8), "odd leading dimension": (0, 3), "misaligned": (1, 4)}


class Case:
    """One problem: its operands, what float64 makes of it, and what rung 1 makes of it."""

    def __init__(self, torch, M, N, K, alpha, beta):
        generator = torch.Generator("cuda").manual_seed(M * 7919 + N * 104729 + K)
        self.a, self.b, self.c = (
            torch.randn(shape, device="cuda", generator=generator) for shape in ((M, K), (K, N), (M, N))
        )
        self.shape, self.alpha, self.beta = (M, N, K), alpha, beta
        a, b, c = (x.double() for x in (self.a, self.b, self.c))
        self.expected = alpha * (a @ b) + beta * c
        self.bound = (K + 3) * EPSILON * (abs(alpha) * (a.abs() @ b.abs()) + abs(beta) * c.abs())
        self.bits = sgemm(self.a, self.b, alpha, beta, self.c.clone(), rung=1)

    def __str__(self):
        return f"{self.shape} alpha {self.alpha} beta {self.beta}"

    def agrees(self, torch, found, chain):
        """Whether a result has the bits of rung 1 or, where it is no sum in one chain, is near float64."""
        if chain:
            return same_bits(torch, found, self.bits)
        return ((found.double() - self.expected).abs() <= self.bound).all()


@pytest.fixture(scope="module")
def cases(torch):
    return [Case(torch, *shape, *scalars) for shape, scalars in itertools.product(SHAPES, SCALARS)]


def laid_out(values, column_major, place):
    """Return (view, buffer): the matrix in a buffer whose other elements are GUARD."""
    before, after = PLACES[place]
    lines, length = values.shape[::-1] if column_major else values.shape
    buffer = values.new_full((before + lines * (length + after) + 5,), GUARD)
    view = buffer.as_strided((lines, length), (length + after, 1), before)
    view = view.T if column_major else view
    view.copy_(values)
    return view, buffer


def failures(torch, checks):
    """The labels of the checks that are false, all asked of the device at once."""
    if not checks:
        return []
    labels, flags = zip(*checks, strict=True)
    answers = torch.stack([flag.reshape(()) for flag in flags]).tolist()
    return [label for label, answer in zip(labels, answers, strict=True) if not answer]


def same_bits(torch, one, two):
    return (one.contiguous().view(torch.int32) == two.contiguous().view(torch.int32)).all()


def test_rung_1_agrees_with_float64(torch, cases):
    checks = [(str(case), case.agrees(torch, case.bits, chain=False)) for case in cases]
    assert failures(torch, checks) == []


@pytest.mark.usefixtures("undivided")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_every_rung_agrees_with_rung_1_and_writes_nothing_else(torch, cases, rung, layout):
    checks = []
    for case in cases:
        for place_a, place_c in (
            ("dense", "dense"), ("padded", "padded"), ("odd leading dimension", "padded"),
            ("padded", "odd leading dimension"), ("misaligned", "misaligned"),
        ):  # fmt: skip
            a, _ = laid_out(case.a, layout[0] == "T", place_a)
            b, _ = laid_out(case.b, layout[1] == "T", "padded" if place_a == "odd leading dimension" else place_a)
            c, buffer = laid_out(case.c, False, place_c)
            if case.beta == 0:
                c.fill_(float("nan"))  # must not be read
            assert sgemm(a, b, case.alpha, case.beta, c, rung=rung.name) is c
            label = f"{case} A and B {place_a}, C {place_c}"
            checks.append((f"{label}: values", case.agrees(torch, c, not rung.narrow)))
            c.fill_(GUARD)
            checks.append((f"{label}: guard", (buffer == GUARD).all()))
    assert failures(torch, checks) == []


@pytest.mark.usefixtures("undivided")
@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_a_column_major_c_gets_the_same(torch, cases, rung):
    checks = []
    for case, place in itertools.product(cases, ("dense", "padded", "misaligned")):
        a, b = (laid_out(x, column, place)[0] for x, column in ((case.a, True), (case.b, False)))
        c, buffer = laid_out(case.c, True, place)
        if case.beta == 0:
            c.fill_(float("nan"))
        sgemm(a, b, case.alpha, case.beta, c, rung=rung.number)
        checks.append((f"{case} {place}: values", case.agrees(torch, c, not rung.narrow)))
        c.fill_(GUARD)
        checks.append((f"{case} {place}: guard", (buffer == GUARD).all()))
    assert failures(torch, checks) == []


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_ones_count_k_exactly(torch, rung):
    """A dropped or doubled step of k shows as a wrong whole number."""
    checks = []
    for M, N, K in [(33, 65, k) for k in (*range(1, 41), 63, 64, 65, 127, 129, 1023, 4097)]:
        for a, b in (
            (torch.ones(M, K, device="cuda"), torch.ones(K, N, device="cuda")),
            (torch.ones(K, M, device="cuda").T, torch.ones(N, K, device="cuda").T),
        ):
            checks.append((K, (sgemm(a, b, rung=rung.number) == K).all()))
    assert failures(torch, checks) == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_nan_and_inf_spread_as_in_float64(torch, rung, layout):
    """Zeros are in the way of some, because 0 * Inf is NaN: a tile padded with zeros must not invent one."""
    nan, inf = float("nan"), float("inf")
    generator = torch.Generator("cuda").manual_seed(5)
    faults = []
    for M, N, K in [(5, 7, 3), (33, 130, 17), (127, 129, 65), (128, 128, 64)]:
        a, b = (torch.randn(shape, device="cuda", generator=generator) for shape in ((M, K), (K, N)))
        a[0, 0], a[M - 1, K - 1], a[M // 2, K // 2] = nan, inf, -inf
        b[0, N - 1], b[K - 1, 0], b[K // 2, N // 2] = -inf, nan, inf
        b[K - 1, N // 3] = 0.0
        expected = (a.double().cpu()[:, :, None] * b.double().cpu()).sum(1)
        a, b = (laid_out(x, t == "T", "dense")[0] for x, t in zip((a, b), layout, strict=True))
        result = sgemm(a, b, rung=rung.number).cpu().double()
        finite = expected.isfinite()
        if not (
            torch.equal(result.isnan(), expected.isnan())
            and torch.equal(result.isfinite(), finite)
            and torch.equal(result[expected.isinf()], expected[expected.isinf()])
        ):
            faults.append((M, N, K))
        assert 0 < finite.sum() < finite.numel()
    assert faults == []


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_alpha_zero_reads_neither_a_nor_b(torch, rung):
    nan = torch.full((65, 65), float("nan"), device="cuda")
    c = torch.randn(65, 65, device="cuda")
    for beta in (0.0, 1.0, -2.5):
        out = sgemm(nan, nan, 0.0, beta, c.clone(), rung=rung.number)
        assert torch.equal(out, beta * c if beta else torch.zeros_like(c))


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_no_steps_and_no_elements(torch, rung):
    c = torch.randn(33, 65, device="cuda")
    empty = torch.ones(33, 0, device="cuda"), torch.ones(0, 65, device="cuda")
    for beta in (0.0, 1.0, -2.5):
        out = sgemm(*empty, float("nan"), beta, c.clone(), rung=rung.number)
        assert torch.equal(out, beta * c if beta else torch.zeros_like(c))
    assert torch.equal(sgemm(*empty, rung=rung.number), torch.zeros_like(c))
    for M, N, K in ((0, 5, 3), (5, 0, 3), (0, 0, 0)):
        a, b = torch.ones(M, K, device="cuda"), torch.ones(K, N, device="cuda")
        assert sgemm(a, b, rung=rung.number).shape == (M, N)


@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_a_hundred_repeats_give_the_same_bits(torch, rung):
    a, b = torch.randn(257, 129, device="cuda"), torch.randn(129, 131, device="cuda")
    first = sgemm(a, b, rung=rung.number)
    checks = [(i, same_bits(torch, sgemm(a, b, rung=rung.number), first)) for i in range(100)]
    assert failures(torch, checks) == []


@pytest.mark.usefixtures("undivided")
@pytest.mark.parametrize("rung", [rung for rung in IEEE if not rung.narrow], ids=str)
def test_a_square_in_many_tiles(torch, rung):
    """A thousand blocks at once: a race or a wrong raster shows here and not in small shapes."""
    a, b = torch.randn(1100, 700, device="cuda"), torch.randn(700, 1300, device="cuda")
    assert torch.equal(sgemm(a, b, rung=rung.number), sgemm(a, b, rung=1))


WARP_TILED = {"BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 4, "WM": 64, "WN": 64, "WNITER": 2}
KNOBS = [
    {"PREFETCH": prefetch, "SERPENTINE": serpentine, "GROUP_M": group, "MIN_BLOCKS": blocks}
    for prefetch, serpentine, group, blocks in [(0, 0, 1, 1), (1, 0, 1, 1), (0, 1, 8, 1), (1, 1, 3, 2), (1, 1, 64, 1)]
]
LARGE = PipelinedConfig(
    128, 256, 16, 16, 4, 64, 64, 2,
    GROUP_M=8, MIN_BLOCKS=1, ORDER=4, FRAGMENTS=2, CP_ASYNC=2, SPREAD=2, SPLIT_K=1,
)  # fmt: skip
CONFIGS = [
    *(("warptiled", WarptiledConfig(**WARP_TILED, **knobs)) for knobs in KNOBS),
    *(
        (
            "pipelined",
            PipelinedConfig(
                **WARP_TILED, GROUP_M=8, MIN_BLOCKS=1, ORDER=o, FRAGMENTS=f, CP_ASYNC=a, SPREAD=s, SPLIT_K=1
            ),
        )
        for o, f, a, s in itertools.product(range(6), (1, 2), (0, 1, 2), range(3))
    ),
    *(("pipelined", replace(LARGE, PARTIAL_ACCUMULATORS=chains)) for chains in (1, 4)),
    *(("pipelined", replace(LARGE, BM=64, BN=128, STAGES=s, FRAGMENTS=f)) for s in (3, 4) for f in (1, 2)),
    (
        "pipelined",
        PipelinedConfig(
            32, 32, 8, 4, 4, 16, 32, 1, GROUP_M=2, MIN_BLOCKS=1, ORDER=3, FRAGMENTS=2, CP_ASYNC=1, SPREAD=0, SPLIT_K=1
        ),
    ),
    ("warptiled", WarptiledConfig(64, 256, 16, 4, 8, WM=32, WN=64, WNITER=2, **KNOBS[3])),
    ("smem_tiled", SharedTileConfig(16, 64, 128)),
    ("blocktile_1d", ThreadColumnConfig(64, 32, 16, 4)),
    ("blocktile_2d", ThreadTileConfig(128, 128, 64, 8, 8)),  # 64 KB of shared memory: more than a block gets unasked
    ("vectorized", VectorizedConfig(256, 64, 16, 8, 8)),
    ("autotuned", VectorizedConfig(64, 64, 96, 4, 4)),
    ("naive", BlockConfig(8, 16)),
    ("coalesced", BlockConfig(4, 64)),
    ("skinny", SkinnyConfig(4, 64, 32, TN=4, TK=4, MIN_BLOCKS=2)),
    ("skinny", SkinnyConfig(32, 32, 32, TN=1, TK=32, MIN_BLOCKS=1)),  # one thread a column: the chain
]


def shipped(gpu):
    """The configs of the tuning files that hold on this device."""
    for name in ("generic", gpu.arch):
        path = resources.folder("tuning_db") / f"{name}.json"
        for line in json.loads(path.read_text())["records"] if path.is_file() else []:
            yield line["rung"], rungs.find(line["rung"]).config.from_constants(line["constants"])


SHARES = 8  # of the configs, so that several processes can share them out


@pytest.mark.parametrize("share", range(SHARES))
def test_every_config_gives_the_bits_of_rung_1(torch, gpu, share):
    problems = [Case(torch, *shape, 1.5, -0.5) for shape in ((261, 395, 137), (256, 384, 128))]
    checks = []
    for name, config in list(dict.fromkeys([*CONFIGS, *shipped(gpu)]))[share::SHARES]:
        if rungs.find(name).violations(config, gpu.shared_limit):
            assert (name, config) not in CONFIGS or gpu.shared_limit < 100_000
            continue
        whole = config.replace(SPLIT_K=1) if "SPLIT_K" in config.declared() else config
        for case in problems:
            out = sgemm(case.a, case.b, case.alpha, case.beta, case.c.clone(), rung=name, config=whole)
            checks.append((f"{name} {config}", case.agrees(torch, out, not has_several_chains(whole.constants))))
    assert failures(torch, checks) == []


@pytest.mark.usefixtures("undivided")
def test_the_default_gives_the_same_bits(torch):
    for M, N, K in ((33, 33, 1), (300, 500, 77), (4096, 33, 16), (40, 40, 4096)):
        a, b = torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")
        assert torch.equal(sgemm(a, b), sgemm(a, b, rung=1))


def test_the_error_at_4096_is_that_of_float32(torch):
    a, b = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
    exact = a.double() @ b.double()
    allowed, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    try:
        vendor = a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    ours, theirs = ((x.double() - exact).norm() / exact.norm() for x in (sgemm(a, b), vendor))
    assert ours <= 1.2 * theirs
