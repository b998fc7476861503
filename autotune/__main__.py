"""`python -m autotune`, and the command `autotune`."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The status of `autotune.cli.output`, which may not be imported yet."""


def main() -> int:
    """Runs the command line; an interrupt while it is imported ends it as one later does."""
    try:
        from autotune.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("autotune: interrupted\n")
        return INTERRUPTED
    return run()


if __name__ == "__main__":
    sys.exit(main())
