"""The version of gpuwatch, read by the build and shown by `gpuwatch --version`."""

__version__ = "0.1.0"
