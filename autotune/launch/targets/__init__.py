"""Frameworks, a file each. What a file defines is registered when it is imported."""

from __future__ import annotations

from distir.registry import import_modules

import_modules(__name__, __path__)
