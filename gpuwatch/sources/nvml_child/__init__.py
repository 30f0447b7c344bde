"""The process that talks to NVML, so that no driver can crash or hang the monitor.

NVML calls segfault after a GPU is lost (nvitop#139) and block for ever in state D (open-gpu-kernel-modules#1333).
This package imports only the standard library and pynvml: each megabyte here is one of the monitor's. It does without
typing and pathlib, which are 1.3 MB: hence `TYPE_CHECKING = False` and paths that are strings.
It reads GPUs and writes JSON lines to its standard output until that is closed.
"""
