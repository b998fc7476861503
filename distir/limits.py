"""Sizes that nobody has: what is larger is a typing error or damage, and is refused where it is
read. Each limit leaves at least a factor of four to the largest case that is known, and is small
enough that what it admits is worked on in seconds and in little memory.
"""

from __future__ import annotations

MOST_DEVICES = 1 << 20
"""Devices of a cluster, a strategy or a unit of a cluster's level. The largest clusters announced
have 200,000 accelerators (2025)."""

MOST_LEVELS = 16
"""Levels of a cluster: board, node, rack, leaf, spine and core are six."""

MOST_LOSS_METRICS = 100
"""Losses that are computed again to be logged. LLM Foundry logs two."""

MOST_MICROBATCHES = 1 << 14
"""Microbatches per replica; no published run comes near."""

MOST_STEPS = 1 << 20
"""Steps of training between synchronisations of replicas: as many as long runs have in all."""

MOST_SAMPLES = 1 << 40
"""Samples of a batch. The largest batches known have some 100,000 (You et al. 2020)."""

MOST_TOKENS = 1 << 30
"""Tokens of a sequence. The longest known contexts have 10 million (Llama 4, 2025)."""

MOST_LAYERS = 1 << 12
"""Layers of a model that is built here. DeepNet has 1,000 (Wang et al. 2022)."""

MOST_WIDTH = 1 << 20
"""Widths of a model's layers, such as hidden and ffn, and its heads and experts. Megatron-1T has
102,400."""

MOST_ROWS = 1 << 40
"""Rows of a table, such as a vocabulary. Recommendation models have some 10^10."""

MOST_DIMS = 16
"""Dims of a tensor. NumPy's own limit was 32 for long; models use up to 8."""

MOST_ELEMENTS = 1 << 44
"""Elements of a tensor in a file. The largest models have 10^12 parameters in all."""

MOST_NAME_CHARACTERS = 200
"""Characters of a name. File systems allow 255 bytes."""

MOST_MESSAGE_CHARACTERS = 4000
"""Characters of an error's message: two screens."""

MOST_WORD_CHARACTERS = 300
"""Characters of a word in an error's message, such as a name that it repeats."""

MOST_TEXT_BYTES = 1 << 28
"""Bytes of a text file that is read: a plan of DeepSeek-V3 is a hundredth of it."""

MOST_RATE = 1e24
MOST_WATTS = 1e9
"""Power of a device."""
"""Bytes or FLOP per second of a device or a link: a million times the fastest machine of the world
as a whole (2025)."""

LEAST_RATE = 1.0
"""One byte or FLOP per second."""

LEAST_FRACTION = 1e-6
"""A fraction of the rate of hardware that software reaches, or that is sustained."""

SHORTEST_SECONDS = 1e-18
"""An attosecond: light crosses a molecule."""

LONGEST_SECONDS = 100 * 365.25 * 24 * 3600.0
"""A century. The longest training runs take months, of millions of iterations."""

MOST_BYTES = 1e18
"""An exabyte: more memory than a hundred thousand of today's accelerators have together is held by
no single one."""
