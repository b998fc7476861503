"""How many strategies the real parsers are tried with."""

from __future__ import annotations

import os

COUNT = int(os.environ.get("LAUNCH_EXAMPLES", "300"))
"""Random strategies per framework: `LAUNCH_EXAMPLES` in the environment, or 300."""
