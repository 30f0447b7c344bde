"""The hook package under a private name, for interpreters in which gpuwatch itself is not installed.

A module with a `__path__` is a package: submodules are found in the hook's folder, one above this one.
"""

import os

__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
