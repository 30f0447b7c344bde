"""The version of this hook, equal to gpuwatch's; the hook cannot ask gpuwatch, which need not be there."""

VERSION = "0.1.0"
