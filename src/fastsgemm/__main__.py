"""The program ``fastsgemm``, also run as ``python -m fastsgemm``.

`main` turns Ctrl-C, a closed stdout and lack of memory into one line and an exit code. Slow imports happen after its
signal handler is installed, so Ctrl-C works during them, too.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import warnings
from types import FrameType

from fastsgemm.progress import abandon, say

_FAILED = 2  # exit code for an error of the caller or the machine
_INTERRUPTED = 130  # exit code that shells use for Ctrl-C


def main(arguments: list[str] | None = None) -> int:
    """Run the program.

    Parameters
    ----------
    arguments : list of str, optional
        Default: the arguments of the process.

    Returns
    -------
    int
        Exit code: 0, 1 for a wrong result, 2 for an error of the caller or the machine, 130 after Ctrl-C.
    """
    interrupts: list[int] = []
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # unlike under nohup, which ignores Ctrl-C

        def interrupt(number: int, frame: FrameType | None) -> None:
            interrupts.append(number)
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
    try:
        with contextlib.suppress(AttributeError, OSError):  # stdout is closed or not a file
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # like stderr
        try:
            from fastsgemm.command_line import main as run

            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_: _say(f"warning: {message}")  # without a line of source
                return run(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        abandon(sys.stdout)
        return 0
    except (KeyboardInterrupt, Exception) as error:
        # While an extension module is imported, a KeyboardInterrupt can become another exception.
        if interrupts or isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
            _say("interrupted")
            abandon(sys.stdout)
            return _INTERRUPTED
        if isinstance(error, MemoryError):
            _say(f"not enough memory: {error}")
        elif isinstance(error, OSError):
            _say(str(error))
        else:
            raise
        abandon(sys.stdout)
        return _FAILED


def _say(text: str) -> None:
    say(f"fastsgemm: {' '.join(text.split())}")


if __name__ == "__main__":
    sys.exit(main())
