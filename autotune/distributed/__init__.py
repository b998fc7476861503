"""Plans run for real: one process per device, messages by torch.distributed.

The one package that knows PyTorch, which is imported when a plan is run. The programs are those of
`distir.execute`; NumPy computes them, or PyTorch, which carries the messages in any case.

    backend.py     PyTorch itself, or how to install it
    tensors.py     tensors that behave like NumPy's arrays, so that ops compute with them
    kernels.py     ops that PyTorch has a kernel for
    computing.py   what computes the ops of a plan, and where
    clock.py       what time it is in a process, or on its GPU
    messenger.py   process groups, collectives and messages, and the bytes they take
    wire.py        collectives of plans, and rings, as messages
    device.py      what one process does in a step
    local.py       processes on this machine, which end together
    execution.py   a plan on processes, its result, and its comparison with one device
    profiling.py   what this machine takes for ops, steps and messages
    fitting.py     the constants with which the cost model predicts that
    measuring.py   what steps take at a plan's own sizes, beside what is simulated
"""
