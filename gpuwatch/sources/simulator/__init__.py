"""A simulated machine and training run for `gpuwatch demo` and `--simulate`; nothing else may show made-up numbers."""
