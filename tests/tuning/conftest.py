from contextlib import contextmanager

import pytest

from fastsgemm import command_line
from fastsgemm.tuning import tuner


@pytest.fixture
def cli(evaluator, data_folder, monkeypatch, capsys):
    """Return a function that runs the command line on the fake evaluator and returns code, stdout and stderr."""

    @contextmanager
    def on_fake(gpu):
        yield evaluator

    monkeypatch.setattr("fastsgemm.device.open_gpu", lambda ordinal: evaluator.device)
    monkeypatch.setattr(tuner, "evaluating", on_fake)

    def call(*arguments, command="tune"):
        try:
            code = command_line.main([*([command] if command else []), *arguments])
        except SystemExit as ended:  # by argparse
            code = ended.code
        return (code, *capsys.readouterr())

    return call
