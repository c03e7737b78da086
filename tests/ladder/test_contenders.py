import numpy as np
import pytest

from fastsgemm.errors import NoDriverError
from fastsgemm.ladder import contenders, measured
from fastsgemm.problem import Problem
from fastsgemm.rungs import RUNGS, find

RAGGED = Problem(67, 45, 129)


def test_on_the_host_there_is_one_product(on_host):
    with contenders.on_host(RAGGED) as place:
        [product] = place.products
        assert product.name == "NumPy"
        np.testing.assert_array_equal(place.result(product.work), place.a @ place.b)


def test_what_a_product_forgets_to_write_is_nan(on_host):
    with contenders.on_host(RAGGED) as place:
        assert np.isnan(place.result(lambda: None)).all()


def test_on_the_host_a_rung_is_an_error(on_host):
    with pytest.raises(NoDriverError, match="3 smem_tiled"), contenders.on_host(RAGGED, [find(3)]):
        pass


def test_the_host_times_are_medians_in_milliseconds(on_host):
    with contenders.on_host(RAGGED) as place:
        [ms] = place.medians([place.products[0].work])
    assert 0.0 < ms < 1000.0


def test_without_a_driver_there_is_no_device(no_driver):
    with pytest.raises(NoDriverError), contenders.on_device(RAGGED, RUNGS):
        pass


@pytest.mark.gpu
@pytest.mark.parametrize("problem", [RAGGED, Problem(256, 256, 256), Problem(1, 300, 2)], ids=str)
def test_every_rung_is_right_on_the_device(problem):
    with contenders.on_device(problem, RUNGS) as place:
        climbed = measured.climb(place)
    assert [row.number for row in climbed.rungs] == [rung.number for rung in RUNGS]
    assert climbed.ok


@pytest.mark.gpu
def test_cublas_is_compared_with_where_torch_has_the_device(torch):
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch cannot use the device")
    with contenders.on_device(Problem(256, 256, 256), [find("naive")]) as place:
        climbed = measured.climb(place)
    assert "PyTorch" in climbed.baseline
    assert climbed.rows[0].percent > 0
    assert climbed.rows[-1].name == "cuBLAS"
