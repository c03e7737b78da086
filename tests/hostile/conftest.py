"""What the hostile tests share."""

import pytest


@pytest.fixture
def tried():
    """Record how often an attack was tried."""
    return lambda attack, count: None
