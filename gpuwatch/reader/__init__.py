"""Another CPython process's stacks and integer attributes, read from outside with process_vm_readv.

It never stops, signals, traces or writes its target. What it cannot read for sure it refuses with a reason.
"""
