"""NVML through a child process, so that no driver can crash or hang the monitor.

NVML calls segfault after a GPU is lost (nvitop#139) and block forever in state D (open-gpu-kernel-modules#1333).

The monitor loads `source` (the GPUs as a source of samples), `process` (one child, from outside) and `wire`, never
pynvml. The child is `child`, run as a program: it reads GPUs and writes JSON lines to its standard output until that
is closed. It loads `wire`, `reasons` and, once pynvml is there, `driver` (calls), `readings` (what all devices share),
`gpu` and `machine`; of the rest of gpuwatch only `gpuwatch.metrics`. Each megabyte of it is one of the monitor's, so
these do without typing and pathlib, which are 1.3 MB: hence `TYPE_CHECKING = False` and paths that are strings.
"""
