import pytest

from fastsgemm.errors import DeviceError
from fastsgemm.sim import cards


def test_an_architecture_stands_for_a_card_of_it():
    assert cards.find("sm_90") == cards.find("NVIDIA H200")
    assert (cards.find("sm_86").name, cards.find("sm_86").multiprocessors) == ("NVIDIA RTX A6000", 84)


def test_every_architecture_that_the_package_supports_has_a_card():
    for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        assert cards.find(arch).arch == arch


def test_unknown_cards_are_refused_with_those_that_are_known():
    with pytest.raises(DeviceError, match=r"'NVIDIA 8800 GTX' cannot be simulated; known are sm_75.*NVIDIA H200"):
        cards.find("NVIDIA 8800 GTX")
