import pytest

from fastsgemm import known_devices
from fastsgemm.sim.occupancy import occupancy


@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared", "blocks", "limited_by"),
    [
        ("sm_90", 1024, 32, 0, 2, "threads"),
        ("sm_90", 1024, 33, 0, 1, "registers"),
        ("sm_90", 256, 128, 8192, 2, "registers"),
        ("NVIDIA H200", 128, 128, 6144, 4, "registers"),
        ("NVIDIA A100-SXM4-40GB", 64, 16, 0, 32, "threads"),
        ("NVIDIA A100-SXM4-40GB", 32, 16, 0, 32, "blocks"),
        ("sm_86", 256, 32, 50 * 1024, 1, "shared memory"),
        ("sm_86", 256, 32, 49 * 1024, 2, "shared memory"),
        ("sm_75", 256, 64, 0, 4, "threads"),
        ("sm_90", 128, 255, 0, 2, "registers"),
    ],
)
def test_blocks_on_an_sm(device, threads, registers, shared, blocks, limited_by):
    limits = known_devices.find(device).limits
    found = occupancy(limits, threads, registers, shared)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert str(found).endswith(f"% of the warps of an SM ({found.warps}), limited by {limited_by}")
    assert found.warps == blocks * threads // 32
    assert found.share == found.warps * 32 / limits.threads
