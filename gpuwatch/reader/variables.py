"""Values of a frame's variables by name: the number that a loop counts its iterations with."""

from __future__ import annotations

from gpuwatch.reader.attributes import Attributes
from gpuwatch.reader.containment import Cache
from gpuwatch.reader.objects import Objects
from gpuwatch.reader.slots import SlotReader
from gpuwatch.reader.types import Code, Frame

_CELL_CONTENTS = 16  # PyCellObject.ob_ref
_MOST_NAMES = 4096
_MOST_CODES = 2_000


class Variables:
    """Reads locals and, for names that are none, globals: what the code of a frame means by a name."""

    def __init__(self, objects: Objects, attributes: Attributes, slots: SlotReader) -> None:
        self._objects = objects
        self._attributes = attributes
        self._slots = slots
        self._names: Cache[int, tuple[Code, tuple[str | None, ...]]] = Cache(_MOST_CODES)

    def forget(self) -> None:
        """Drops what is known of code objects."""
        self._names.clear()

    def integer(self, frame: Frame, name: str) -> int | None:
        """The int that `name` stands for in the frame; "self.step" is an attribute of a variable.

        None where it is not bound, holds no int, or is answered by a property.
        """
        variable, _, attribute = name.partition(".")
        address = self._bound(frame, variable)
        if address is not None and attribute:
            address = self._attributes.values(address, frozenset((attribute,))).get(attribute)
        return None if address is None else self._objects.integer(address)

    def _bound(self, frame: Frame, name: str) -> int | None:
        """The address of the object that the name is bound to."""
        names = self._names_of(frame.code)
        if name in names:
            pointer = self._slots.untagged(self._objects.pointer(frame.locals_address + 8 * names.index(name)) or 0)
            info = self._objects.type_of(pointer)
            is_cell = info is not None and info.name == "cell" and not info.heap
            return self._objects.pointer(pointer + _CELL_CONTENTS) if is_cell else pointer or None
        globals_address = self._objects.pointer(frame.address + self._objects.layout.frame_globals)
        return None if globals_address is None else self._attributes.dictionary(globals_address, (name,)).get(name)

    def _names_of(self, code: Code) -> tuple[str | None, ...]:
        """The names of the slots, in their order."""
        known = self._names.get(code.address)
        if known is None or known[0] is not code:
            layout = self._objects.layout
            tables = [self._objects.pointer(code.address + at) for at in (layout.code_names, *layout.code_cells)]
            items = [item for table in tables if table for item in self._objects.items(table, _MOST_NAMES) or ()]
            known = self._names[code.address] = code, tuple(map(self._objects.text, items))
        return known[1]
