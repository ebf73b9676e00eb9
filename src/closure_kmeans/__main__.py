"""``python -m closure_kmeans`` is the command ``closure-kmeans``."""

from closure_kmeans.cli import main

if __name__ == "__main__":
    main(prog_name="closure-kmeans")
