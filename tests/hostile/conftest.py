"""What the attacks share."""

import pytest


@pytest.fixture
def tried():
    """Return a function that notes how often an attack was tried."""
    return lambda attack, count: None
