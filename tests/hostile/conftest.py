"""What the hostile suite shares."""

import pytest


@pytest.fixture
def tried():
    """Note how often an attack was tried."""

    def note(attack: str, count: int) -> None:
        pass

    return note
