"""Objects read through process_vm_readv out of the very process that runs the test."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Iterator

import pytest

from gpuwatch.reader.layout import TABLES
from gpuwatch.reader.loops import SlotReader, Variables
from gpuwatch.reader.memory import Memory
from gpuwatch.reader.objects import Attributes, Objects
from gpuwatch.reader.refusals import CannotReadError
from tests.unit.stack_samples import frames

LAYOUT = TABLES.get(sys.version_info[:2])

pytestmark = [
    pytest.mark.skipif(LAYOUT is None, reason="the layout of this Python's objects is not known"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="process_vm_readv is Linux's"),
]


@pytest.fixture
def objects() -> Iterator[Objects]:
    assert LAYOUT is not None
    try:
        memory = Memory(os.getpid())
    except CannotReadError as refusal:
        pytest.skip(refusal.sentence)
    yield Objects(memory, LAYOUT)
    memory.close()


@pytest.fixture
def attributes(objects: Objects) -> Attributes:
    return Attributes(objects)


class Plain:
    pass


def values_of(objects: Objects, attributes: Attributes, instance: object, *names: str) -> dict[str, object]:
    found = attributes.values(id(instance), frozenset(names))
    return {name: objects.plain(address) for name, address in found.items()}


@pytest.mark.parametrize(
    "number", [0, 1, -1, 255, 256, 257, 2**30 - 1, 2**30, -(2**30), 2**59 + 3, 2**60, -(2**200) - 7, 10**300]
)
def test_ints_of_every_size_are_read(objects: Objects, number: int) -> None:
    assert objects.plain(id(number)) == number


def test_a_count_that_goes_on_while_it_is_read_is_not_taken(
    objects: Objects, attributes: Attributes, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = Variables(objects, attributes, SlotReader(objects))
    before, after = 10**6, 10**6 + 1
    places = iter([id(before), id(after), id(after), id(after)])
    monkeypatch.setattr(variables, "_place", lambda *_: next(places))
    frame, _ = frames(("train.py", "main", 1))
    assert variables.integer(frame, "step") is None
    assert variables.integer(frame, "step") == after


def test_a_huge_int_is_unknown_instead_of_read_for_ever(objects: Objects) -> None:
    number = 1 << 100_000
    assert objects.integer(id(number)) is None


@pytest.mark.parametrize("text", ["", "a", "_num_yielded", "grün", "Жук", "🐞 and more", "x" * 4000])
def test_text_of_every_width_is_read(objects: Objects, text: str) -> None:
    assert objects.plain(id(text)) == text


def test_bools_and_floats_keep_their_kind(objects: Objects) -> None:
    number = 3.25
    assert objects.plain(id(True)) is True
    assert objects.plain(id(False)) is False
    assert objects.plain(id(number)) == 3.25


def test_none_and_unknown_kinds_have_no_value(objects: Objects) -> None:
    thing = object()
    assert objects.plain(id(None)) is None
    assert objects.plain(id(thing)) is None


def test_an_int_subclass_is_read_as_its_int(objects: Objects) -> None:
    class Counted(int):
        pass

    number = Counted(77)
    assert objects.integer(id(number)) == 77


def test_lengths_and_items_of_lists_and_tuples(objects: Objects) -> None:
    for sequence in ([1, 2, 3], (1, 2, 3), [], ()):
        assert objects.length(id(sequence)) == len(sequence)
        assert [objects.plain(item) for item in objects.items(id(sequence), 10) or ()] == list(sequence)
    assert objects.length(id("abc")) is None
    assert objects.items(id({1: 2}), 10) is None


def test_addresses_that_hold_no_object_are_unknown(objects: Objects) -> None:
    garbage = ctypes.create_string_buffer(os.urandom(4096))
    start = ctypes.addressof(garbage)
    for place in (0, 1, 8, 4096, 2**47, 2**63, 2**64 - 8, *range(start, start + 4000, 4)):
        assert objects.integer(place) is None
        assert objects.text(place) is None
        assert objects.length(place) is None


def test_a_class_tells_its_name_and_bases(objects: Objects) -> None:
    class Child(Plain):
        pass

    child = Child()
    info = objects.type_of(id(child))
    assert info is not None
    assert info.name == "Child"
    assert [ancestor.name for ancestor in objects.ancestors(info)] == ["Child", "Plain", "object"]


def test_attributes_of_an_instance(objects: Objects, attributes: Attributes) -> None:
    class Holder:
        def __init__(self) -> None:
            self.count = 1000
            self.name = "train"
            self.flag = True
            self.nothing = None

    holder = Holder()
    found = values_of(objects, attributes, holder, "count", "name", "flag", "nothing", "missing")
    assert found == {"count": 1000, "name": "train", "flag": True, "nothing": None}


def test_attributes_are_found_when_their_dict_was_asked_for(objects: Objects, attributes: Attributes) -> None:
    class Holder:
        def __init__(self) -> None:
            self.first = 1
            self.count = 2000

    holder = Holder()
    assert vars(holder)["count"] == 2000
    holder.count = 2001
    assert values_of(objects, attributes, holder, "count") == {"count": 2001}


def test_attributes_beyond_those_that_classes_share(objects: Objects, attributes: Attributes) -> None:
    holder = Plain()
    for index in range(200):
        setattr(holder, f"attribute_{index}", index * 1000)
    found = values_of(objects, attributes, holder, "attribute_0", "attribute_29", "attribute_199")
    assert found == {"attribute_0": 0, "attribute_29": 29_000, "attribute_199": 199_000}


def test_attributes_of_a_dict_with_keys_that_are_not_text(objects: Objects, attributes: Attributes) -> None:
    holder = Plain()
    vars(holder)[17] = "number"  # type: ignore[call-overload]
    holder.count = 5000  # type: ignore[attr-defined]
    assert values_of(objects, attributes, holder, "count") == {"count": 5000}


def test_attributes_kept_in_a_subclass_of_dict(objects: Objects, attributes: Attributes) -> None:
    class Keeping(dict):  # type: ignore[type-arg]
        pass

    holder = Plain()
    holder.__dict__ = Keeping(count=6000)
    assert values_of(objects, attributes, holder, "count") == {"count": 6000}


def test_a_deleted_attribute_is_missing(objects: Objects, attributes: Attributes) -> None:
    class Holder:
        def __init__(self) -> None:
            self.count = 1
            self.other = 2

    holder, before = Holder(), Holder()
    del holder.count
    assert values_of(objects, attributes, holder, "count", "other") == {"other": 2}
    assert values_of(objects, attributes, before, "count", "other") == {"count": 1, "other": 2}


def test_an_attribute_that_a_property_hides_is_unknown(objects: Objects, attributes: Attributes) -> None:
    class Base:
        pass

    class Hiding(Base):
        @property
        def count(self) -> int:
            return 9

    holder = Hiding()
    vars(holder)["count"] = 7
    vars(holder)["other"] = 8
    assert values_of(objects, attributes, holder, "count", "other") == {"other": 8}


def test_a_default_of_the_class_hides_nothing(objects: Objects, attributes: Attributes) -> None:
    class Holder:
        count = 3

    holder = Holder()
    assert values_of(objects, attributes, holder, "count") == {}
    holder.count = 4
    assert values_of(objects, attributes, holder, "count") == {"count": 4}


def test_slots_and_builtins_have_no_attributes_to_read(objects: Objects, attributes: Attributes) -> None:
    class Slotted:
        __slots__ = ("count",)

    holder = Slotted()
    holder.count = 3
    for thing in (holder, 5, "text", [1], itertools.count()):
        assert attributes.values(id(thing), frozenset({"count"})) == {}


def test_a_slot_is_known_to_be_stale_once_its_object_changed_shape(objects: Objects, attributes: Attributes) -> None:
    holder = Plain()
    holder.count = 1  # type: ignore[attr-defined]
    info = objects.type_of(id(holder))
    assert info is not None
    slot = attributes.slots(id(holder), info, ("count",))["count"]
    stands = [objects.read(place, len(expected)) == expected for place, expected in slot.witnesses]
    assert stands and all(stands)
    for index in range(100):
        setattr(holder, f"more_{index}", index)
    assert not all(objects.read(place, len(expected)) == expected for place, expected in slot.witnesses)
