"""An array of any library, seen through DLPack alone."""


class Exported:
    """An array with DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)
