"""What ``import fastsgemm.torch`` or ``import fastsgemm.jax`` says where that library is missing or broken."""

import subprocess
import sys


def last_line(library, text, folder):
    """Return the last line of the error where the library is a module of this text, or None: it is not installed."""
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    if text is None:
        program += f"sys.modules[{library!r}] = None\n"
    else:
        (folder / f"{library}.py").write_text(text)
    command = [sys.executable, "-c", program + f"import fastsgemm.{library}"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 1
    return ran.stderr.splitlines()[-1]
