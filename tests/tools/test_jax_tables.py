"""The table of docs/jax.md, from a run that is made up."""

import pytest

jax = pytest.importorskip("page_tables.jax", reason="tools/ is part of a checkout only")


def test_each_measurement_is_a_line():
    one = {"ieee_ratio": 0.96, "fp16x3_ratio": 0.5}
    run = {
        "date": "2026-01-01",
        "device": "NVIDIA X",
        "jax": "9.9",
        "host_cost": {"n": 64, **one},
        "several_devices": "needs two devices",
    }
    run |= {
        "scan": {"256": one},
        "scan_of_graphs": {"256": one | {"ieee_ratio": 1.25}},
        "transformer": {"seconds": one},
    }
    text = jax.texts({"jax": run})["jax"]
    assert "on one NVIDIA X, JAX 9.9, 2026-01-01." in text
    assert "| the host, for a jitted call on 64³ | 0.96 | 0.50 |" in text
    assert "| a `scan` of 100 products of 256³, in graphs | 1.25 | 0.50 |" in text
    assert "| a training step of a transformer | 0.96 | 0.50 |" in text and "Gaussian" not in text
    assert "devices" not in text
    run["several_devices"] = {"n": 64, "1": one, "2": {"K": one | {"ieee_ratio": 0.75}}}
    text = jax.texts({"jax": run})["jax"]
    assert "| 64³ on one device | 0.96 | 0.50 |\n| 64³ on 2 devices, K divided | 0.75 | 0.50 |" in text


def test_nothing_measured_says_what_to_run():
    assert "jax_products.py" in jax.texts({})["jax"]
