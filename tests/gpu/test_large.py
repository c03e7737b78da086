"""Operands past 2^31 elements: every offset must be 64 bits wide."""

import pytest

from fastsgemm import sgemm
from fastsgemm.rungs import IEEE

pytestmark = pytest.mark.gpu

FAR = 2**30  # elements from one line to the next: the fourth starts past 2^31


@pytest.fixture(scope="module")
def buffer(torch, ask_for_room):
    """A matrix of 4 lines, 16 GiB."""
    ask_for_room()
    yield torch.empty(4, FAR, device="cuda")
    torch.cuda.empty_cache()


def whole(torch, *shape):
    return torch.randint(-4, 5, shape, device="cuda").float()


@pytest.mark.parametrize("length", [68, 67], ids=["by 16 bytes", "by 4 bytes"])
@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_lines_that_are_far_apart(torch, buffer, rung, length):
    """A, B and C in turn, row- and column-major: the other operands are small."""
    assert buffer[3, 0].data_ptr() - buffer.data_ptr() > 4 * 2**31
    lines, place = buffer[:, :length], buffer[:, 128 : 128 + length]
    a, b = whole(torch, 4, length), whole(torch, length, 4)
    square, wide = whole(torch, length, length), whole(torch, 8, 4)
    checks = {}

    lines.copy_(a)
    checks["A row-major"] = torch.equal(sgemm(lines, square, rung=rung.number), a @ square)
    checks["B row-major"] = torch.equal(sgemm(wide, lines, rung=rung.number), wide @ a)
    lines.copy_(b.T)
    checks["A column-major"] = torch.equal(sgemm(lines.T, wide.T, rung=rung.number), b @ wide.T)
    checks["B column-major"] = torch.equal(sgemm(square, lines.T, rung=rung.number), square @ b)
    place.fill_(float("nan"))
    sgemm(a, square, C=place, rung=rung.number)
    checks["C row-major"] = torch.equal(place, a @ square)
    place.fill_(float("nan"))
    sgemm(square, b, C=place.T, rung=rung.number)
    checks["C column-major"] = torch.equal(place.T, square @ b)
    lines.copy_(a)
    place.fill_(1)
    sgemm(lines, square, 1.0, 1.0, place, rung=rung.number)  # views of one buffer that share no element
    checks["A and C"] = torch.equal(place, a @ square + 1)
    assert [name for name, passed in checks.items() if not passed] == []


@pytest.mark.parametrize("rung", [IEEE[0], IEEE[-1]], ids=str)
def test_packing_lines_that_are_far_apart(torch, buffer, rung):
    a, square = whole(torch, 4, 34), whole(torch, 34, 34)
    lines, place = buffer[:, :68:2], buffer[:, 128:196:2]
    lines.copy_(a)
    sgemm(lines, square, C=place, rung=rung.number)
    assert torch.equal(place, a @ square)


@pytest.mark.parametrize("tall", [True, False], ids=["tall", "wide"])
@pytest.mark.parametrize("rung", IEEE, ids=str)
def test_a_result_of_more_than_2_to_the_31_elements(torch, buffer, rung, tall):
    long, short, K = 2**26 + 1, 33, 2
    A, B = whole(torch, long if tall else short, K), whole(torch, K, short if tall else long)
    C = buffer.view(-1)[: long * short].view(A.shape[0], B.shape[1])
    assert C.numel() > 2**31
    C.fill_(float("nan"))
    sgemm(A, B, C=C, rung=rung.number)
    step = 2**23
    for start in range(0, long, step):  # in pieces: the reference must not have the fault that is looked for
        piece = slice(start, start + step)
        if tall:
            assert torch.equal(C[piece], A[piece] @ B), start
        else:
            assert torch.equal(C[:, piece], A @ B[:, piece]), start


def test_operands_of_more_than_2_to_the_31_elements(torch, buffer):
    """K is short and M long in A, and the other way round in B."""
    long, short = 2**26 + 1, 33
    x = buffer.view(-1)[: long * short]
    x.fill_(1)
    x[-1] = 5
    for rung in IEEE:
        tall = sgemm(x.view(long, short), torch.ones(short, 1, device="cuda"), rung=rung.number)
        assert (tall[:-1] == short).all() and tall[-1] == short + 4, rung
        wide = sgemm(torch.ones(1, short, device="cuda"), x.view(short, long), rung=rung.number)
        assert (wide[:, :-1] == short).all() and wide[0, -1] == short + 4, rung
