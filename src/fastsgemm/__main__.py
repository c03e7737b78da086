"""The program: ``python -m fastsgemm``, also installed as ``fastsgemm``.

`main` runs the command line as a process of its own: whatever happens to Ctrl-C, stdout and stderr is one line and an
exit code. Nothing that takes time is imported before that is arranged.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from types import FrameType

from fastsgemm.progress import abandon, say

_FAILED = 2  # the exit code where the caller or the machine is at fault
_INTERRUPTED = 130  # the exit code that shells use for Ctrl-C


def main(arguments: list[str] | None = None) -> int:
    """Run the command line as a process.

    Parameters
    ----------
    arguments : list of str, optional
        Default: those of the process.

    Returns
    -------
    int
        The exit code: 0, 1 for a wrong result, 2 for an error of the caller or the machine, 130 after Ctrl-C.
    """
    interrupts: list[int] = []
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not under nohup, which ignores it

        def interrupt(number: int, frame: FrameType | None) -> None:
            interrupts.append(number)
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
    try:
        with contextlib.suppress(AttributeError, OSError):  # stdout is closed, or is not a file
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as stderr does
        try:
            from fastsgemm.command_line import main as run

            return run(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:  # the reader, head for example, has seen enough
        abandon(sys.stdout)
        return 0
    except (KeyboardInterrupt, Exception) as error:
        # An extension module may turn a KeyboardInterrupt into another exception while it is imported.
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
