"""Make a call compute its product in a way that the test gives, whatever the database says."""

from fastsgemm.call import product
from fastsgemm.heuristics.choice import PREDICTED, Choice, Share

NOTHING = (False, False)


def whole(rung, config, packed=NOTHING):
    """Return a function of A, B and C that returns the choice of one product."""

    def choose(a, b, c):
        return Choice((Share(rung, config, (0, c.shape[0]), (0, c.shape[1]), packed, PREDICTED, None, 1.0),), ms=1.0)

    return choose


def cut(axis, place, first, second, packed=NOTHING, second_first=False):
    """Return the same for a C that is cut before a row (axis 0) or a column; a share is a rung and a config."""

    def choose(a, b, c):
        shares = []
        for begin, end, (rung, config), of in ((0, place, first, packed), (place, c.shape[axis], second, NOTHING)):
            spans = [(0, c.shape[0]), (0, c.shape[1])]
            spans[axis] = begin, end - begin
            shares.append(Share(rung, config, *spans, of, PREDICTED, None, 1.0))
        return Choice(tuple(reversed(shares) if second_first else shares), ms=2.0)

    return choose


def force(monkeypatch, way):
    """Let calls that name no rung and no config get this choice."""
    real = product.choose

    def choose(device, request, a, b, c, extents=()):
        asked = request.rung is not None or request.config is not None or request.batch_invariant
        return real(device, request, a, b, c, extents) if asked else way(a, b, c)

    monkeypatch.setattr(product, "choose", choose)
