"""The switch beside PyTorch's own overrides in Python, which it has since 2.12: whoever comes and goes first."""

import pytest

torch = pytest.importorskip("torch")
registry = pytest.importorskip("torch._native.registry")

from torch_products import A, B, enabled  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_host")

KEY = ("mm", "CPU")


@pytest.fixture(params=["python", "launcher"])
def way(request):
    if request.param == "launcher":
        request.getfixturevalue("launcher")


@pytest.fixture
def other(way):
    """An override of PyTorch's own of torch.mm that takes no call; yields a function that registers it again."""
    registry.register_op_override("test", "aten", *KEY, lambda *operands: False, lambda *operands: None)

    def turn():
        registry.deregister_op_overrides(disable_dsl_names="test")
        registry.reenable_op_overrides(enable_dsl_names="test")

    turn()
    yield turn
    registry.deregister_op_overrides(disable_dsl_names="test")
    for table in (registry._graphs, registry._dsl_name_to_lib_graph):
        table.pop(KEY, None)
        table.pop("test", None)
    torch.testing.assert_close(torch.mm(A, B), torch.from_numpy(A.numpy() @ B.numpy()))


def replaced(turned):
    return turned.report().calls


def test_it_was_there_before(other):
    with enabled() as turned:
        torch.mm(A, B)
        torch.mm(A.double(), B.double())
    torch.mm(A, B)
    assert replaced(turned) == 1


def test_it_is_registered_again_while_the_switch_is_on(other):
    with enabled() as turned:
        torch.mm(A, B)
        other()
        torch.mm(A, B)
        torch.mm(A.double(), B.double())
    for _ in range(2):
        torch.mm(A, B)
        torch.mm(A.double(), B.double())
    assert replaced(turned) == 2


def test_it_is_taken_back_while_the_switch_is_on(other):
    with enabled() as turned:
        torch.mm(A, B)
        registry.deregister_op_overrides(disable_dsl_names="test")
        torch.mm(A, B)
        torch.mm(A.double(), B.double())
        torch.mm(A.double(), B.double())
    torch.mm(A, B)
    registry.reenable_op_overrides(enable_dsl_names="test")
    torch.mm(A, B)
    assert replaced(turned) == 2


def test_blocks_change_while_it_is_there(other):
    with enabled() as outer:
        other()
        with enabled() as inner:
            torch.mm(A, B)
            torch.mm(A.double(), B.double())
        torch.mm(A, B)
    torch.mm(A, B)
    assert replaced(inner) == 1 and replaced(outer) == 1
