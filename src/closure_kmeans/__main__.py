"""``python -m closure_kmeans`` is the command ``closure-kmeans``."""

import sys


def run() -> None:
    """The command; an interrupt while its parts are loaded is an interrupt like any other."""
    try:
        from closure_kmeans.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main(prog_name="closure-kmeans")


if __name__ == "__main__":
    run()
