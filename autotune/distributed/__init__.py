"""Plans run for real: one process per device, messages by torch.distributed.

The one package that knows PyTorch, which is imported when a plan is run. NumPy computes, as in
`distir.execute`, with the same programs, and torch carries the messages.

    backend.py     PyTorch itself, or how to install it
    messenger.py   process groups, collectives and messages, and the bytes they take
    wire.py        collectives of plans, and rings, as messages
    device.py      what one process does in a step
    local.py       processes on this machine, which end together
    execution.py   a plan on processes, its result, and its comparison with one device
    measuring.py   what steps take at a plan's own sizes, beside what is simulated
"""
