"""``python -m closure_kmeans`` is the command ``closure-kmeans``."""

import os
import sys


def run() -> None:
    """The command; an interrupt while its parts are loaded is an interrupt like any other."""
    _open_closed_streams()
    try:
        from closure_kmeans.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main(prog_name="closure-kmeans")


def _open_closed_streams() -> None:
    """Put the null device where standard streams are closed: the next file to be opened would take their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
    if sys.stderr is None:  # the others stay None, so that ``-`` can be refused
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


if __name__ == "__main__":
    run()
