"""The hook: the part of gpuwatch that runs inside the training process.

Standard library only, Python 3.8 and later, no threads, and nothing else of gpuwatch: it must load in an
interpreter that has never heard of gpuwatch. The launcher loads this folder under the private name
`_gpuwatch_hook` (see site/), `gpuwatch.watch()` under `gpuwatch.hook`; only one of them is ever installed.
"""
