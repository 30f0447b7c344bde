"""Arms the hook in every Python that `gpuwatch run` starts, then runs the sitecustomize it shadows.

Interpreters of any version get this file through PYTHONPATH, so it is silent and parses down to Python 2. Our
folder leaves sys.path again, and the shadowed module takes our place in sys.modules: the program finds both as
they would be without us.
"""

import os
import sys

_here = os.path.dirname(__file__)

try:
    if sys.version_info >= (3, 8) and not os.environ.get("GPUWATCH_DISABLE"):
        import _gpuwatch_hook.imports  # type: ignore[import-not-found, unused-ignore]

        _gpuwatch_hook.imports.arm()
except Exception:  # noqa: BLE001, S110 - a broken hook must not be seen in a program that never asked for it
    pass
sys.path[:] = [_path for _path in sys.path if _path != _here]

_absent = ImportError("No module named sitecustomize")
_absent.name = "sitecustomize"  # the site module passes over this one in silence, as if there were no such file

if sys.version_info[0] == 2:
    import imp  # type: ignore[import-not-found, unused-ignore]

    try:
        _found = imp.find_module("sitecustomize", sys.path)
    except ImportError:
        raise _absent  # noqa: B904 - Python 2 knows no `from`
    imp.load_module("sitecustomize", *_found)
else:
    # The frozen modules behind importlib are loaded already; importlib.util itself costs 2 ms.
    _spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize", sys.path)
    if _spec is None or _spec.loader is None:
        raise _absent
    _module = sys.modules["_frozen_importlib"].module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
