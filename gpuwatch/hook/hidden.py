"""How functions of torch are replaced, in one place, so that no tool sees a difference.

A replacement has the parameters, defaults and names of the original, and leaves no entry in the tracebacks of
exceptions that pass through it. Its file name names no file: `coverage` leaves out names in angle brackets, and
`warnings.warn(..., stacklevel=2)` passes over names that hold both "importlib" and "_bootstrap" (Python/_warnings.c,
is_internal_frame), so that a warning below a replacement still names the user's line. Dynamo would compile one that it
meets after a graph break; it skips marked code.

One difference stays: `inspect.getfile` gives that name. With the name of torch's file, a warning would name torch.
"""

from __future__ import annotations

import sys

from .imports import FILE, traceback_of

TYPE_CHECKING = False  # typing itself would cost 3 ms at the start of every Python
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, Callable, TypeVar

    AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

_COPIED = ("__module__", "__name__", "__qualname__", "__doc__", "__defaults__", "__kwdefaults__", "__type_params__")
_VARIADIC, _KEYWORDS = 0x04, 0x08
_SOURCE = """\
def {name}({parameters}):
    _gpuwatch_token = _gpuwatch_enter({argument})
    try:
        _gpuwatch_result = _gpuwatch_original({passed})
    except BaseException as _gpuwatch_error:
        _gpuwatch_leave_traceback(_gpuwatch_error)
        _gpuwatch_leave(_gpuwatch_token, {other}, None, True)
        raise
    _gpuwatch_leave(_gpuwatch_token, {other}, _gpuwatch_result, False)
    return _gpuwatch_result
"""


def hidden(function: AnyFunction, original: Callable[..., Any] | None = None) -> AnyFunction:
    """The same function, passed over by tools; with an original, in that one's clothes."""
    code = function.__code__.replace(co_filename=FILE)
    if original is not None:
        for name in _COPIED:
            if hasattr(original, name):
                setattr(function, name, getattr(original, name))
        annotations = (
            "__annotate__" if hasattr(function, "__annotate__") else "__annotations__"
        )  # since Python 3.14 lazy
        if hasattr(original, annotations):
            setattr(function, annotations, getattr(original, annotations))
        function.__dict__.update(getattr(original, "__dict__", {}))
        function.__dict__["__wrapped__"] = original
        function.__dict__["_torchdynamo_inline"] = original  # what Dynamo traces where a traced function calls this one
        names = {"co_name": function.__name__, "co_qualname": function.__qualname__}
        code = code.replace(**{key: value for key, value in names.items() if hasattr(code, key)})  # type: ignore[arg-type]
    function.__code__ = code
    if "torch" in sys.modules:
        _skip(function.__code__, with_what_it_calls=False)
    return function


def around(
    original: AnyFunction,
    enter: Callable[[Any], Any],
    leave: Callable[[Any, Any, Any, bool], None],
    argument: str | None = None,
    other: str | None = None,
) -> AnyFunction:
    """A replacement of the original with something before and after it.

    `enter(value)` takes the value of the named argument, None where the original has no such parameter, and returns a
    token; `leave(token, value, result, raised)` gets it back, and the value of the `other` argument if that is named,
    else the same one. Both must handle their own errors.
    """
    code = getattr(original, "__code__", None)
    name = getattr(original, "__name__", "")
    parameters, passed, names = _parameters(code) if code is not None else ("*arguments, **named", *_ANY)
    source = _SOURCE.format(
        name=name if name.isidentifier() else "replaced",
        parameters=parameters,
        passed=passed,
        argument=argument if argument in names else "None",
        other=(other or argument) if (other or argument) in names else "None",
    )
    namespace: dict[str, Any] = {
        "_gpuwatch_enter": enter,
        "_gpuwatch_leave_traceback": leave_traceback,
        "_gpuwatch_leave": leave,
        "_gpuwatch_original": original,
        "__name__": __name__,
        "BaseException": BaseException,
    }
    exec(compile(source, FILE, "exec"), namespace)
    return hidden(namespace[name if name.isidentifier() else "replaced"], original)  # type: ignore[no-any-return]


_ANY = ("*arguments, **named", ())


_per_step: list[tuple[Any, str, Any, Any]] = []
_are_out = False


def replace_per_step(holder: Any, name: str, replacement: Any) -> None:
    """Puts in a replacement that every step calls: it is taken out while nothing is recorded.

    In a real loop a step has emptied the caches: the call of a wrapper that does nothing costs it 1 to 2 us.
    """
    _per_step.append((holder, name, replacement, getattr(holder, name)))
    setattr(holder, name, replacement)


def take_out() -> None:
    """Gives their places back to the functions that every step calls."""
    global _are_out
    if not _are_out:
        _are_out = True
        for holder, name, replacement, original in _per_step:
            if vars(holder).get(name) is replacement:  # else another tool has wrapped it
                setattr(holder, name, original)


def put_in() -> None:
    """Replaces them again."""
    global _are_out
    if _are_out:
        _are_out = False
        for holder, name, replacement, original in _per_step:
            if vars(holder).get(name) is original:
                setattr(holder, name, replacement)


def leave_traceback(error: BaseException) -> None:
    """Takes the entry of the caller, which has caught the error, out of its traceback.

    Past the error's own methods: an exception that is a frozen dataclass refuses to be changed.
    """
    BaseException.with_traceback(error, traceback_of(error).tb_next)


def _parameters(code: CodeType) -> tuple[str, str, tuple[str, ...]]:
    """The parameters of a function, how they are passed on, and their names. Defaults are put in afterwards."""
    positional = code.co_argcount
    total = positional + code.co_kwonlyargcount
    names = code.co_varnames[:total]
    written, passed = list(names[:positional]), list(names[:positional])
    if code.co_posonlyargcount:
        written.insert(code.co_posonlyargcount, "/")
    following = total
    if code.co_flags & _VARIADIC:
        rest = "*" + code.co_varnames[following]
        written.append(rest)
        passed.append(rest)
        following += 1
    elif total > positional:
        written.append("*")
    written += names[positional:]
    passed += [f"{name}={name}" for name in names[positional:]]
    if code.co_flags & _KEYWORDS:
        rest = "**" + code.co_varnames[following]
        written.append(rest)
        passed.append(rest)
    return ", ".join(written), ", ".join(passed), names


def hide_package(package: str) -> None:
    """Makes Dynamo skip all functions of a package's modules with everything they call; the replacements are marked.

    Called from a replacement inside a compiled step, a flush would otherwise be compiled, 15 frames of it.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(package + "."):
            held = list(vars(module).values())
            for kind in [each for each in held if type(each) is type and each.__module__ == name]:
                held += vars(kind).values()
            for function in held:
                # What a module has imported, and the methods that all named tuples share, are the program's as well.
                if type(function) is type(hide_package) and function.__globals__ is vars(module):
                    _skip_all(function.__code__)


def _skip_all(code: CodeType) -> None:
    _skip(code, with_what_it_calls=True)
    for inner in code.co_consts:
        if type(inner) is type(code):
            _skip_all(inner)


def _skip(code: CodeType, with_what_it_calls: bool) -> None:
    try:
        from torch._C._dynamo import eval_frame

        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP if with_what_it_calls else action.DEFAULT)
        eval_frame.set_code_exec_strategy(code, strategy)
    except (ImportError, AttributeError, TypeError):
        pass  # before torch 2.6 there is no such switch, and Dynamo compiles the function at worst
