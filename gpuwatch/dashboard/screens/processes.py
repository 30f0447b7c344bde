"""The processes: ranks of the runs, and everybody else with a context on a GPU; all of one of them; signals to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widget import Widget

from gpuwatch.dashboard import formatting as say
from gpuwatch.dashboard.actions import Key, State, bindings, bottom_line
from gpuwatch.dashboard.lines import Line, LineWriter, Page, blanks, rule, selected
from gpuwatch.dashboard.screens.base import PageScreen, ViewScreen, in_background
from gpuwatch.dashboard.themes import Look
from gpuwatch.dashboard.view import OLD_STATUS_NS, View
from gpuwatch.dashboard.widgets import CursorList, LinesWidget, set_height
from gpuwatch.dashboard.words import VISIBILITIES, gpu_indices
from gpuwatch.monitor.snapshot import GpuNow, Snapshot
from gpuwatch.monitor.verdict import unhooked
from gpuwatch.samples import GpuProcess, RunFacts
from gpuwatch.sources.host.vitals import SIGNALS, Details, Vitals, VitalsReader, details_of, send

_CAN_ATTACH = {
    "exact": "no hook (a: attach)",
    "sampled": "no hook (a: attach)",
    "process": "no hook, a: /proc only",
    "hardware": "NVML",
}
"""What the key does for a process without a hook, by how well it can be seen at best."""


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process on one GPU, or one that trains without."""

    pid: int | None
    host_pid: int
    gpu: str
    kind: str
    command: str
    user: str | None = None
    memory_bytes: int | None = None
    sm_percent: float | None = None
    age_seconds: float | None = None
    vitals: Vitals | None = None

    @property
    def number(self) -> str:
        """Its pid, of one that has none here the host's."""
        return str(self.pid) if self.pid is not None else f"host {self.host_pid}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: how it is headed, worded, sorted, and from which width of the terminal on it is there."""

    title: str
    width: int
    words: Callable[[ProcessRow], str]
    order: Callable[[ProcessRow], float | str]
    from_width: int = 0
    right: bool = True
    largest_first: bool = False


def _number(value: float | None) -> float:
    """Unknown is less than any figure."""
    return -1.0 if value is None else value


def _cpu_percent(row: ProcessRow) -> float | None:
    return row.vitals.cpu_percent if row.vitals else None


def _rss_bytes(row: ProcessRow) -> int | None:
    return row.vitals.rss_bytes if row.vitals else None


def _cpu(row: ProcessRow) -> str:
    return say.percent(_cpu_percent(row))


def _rss(row: ProcessRow) -> str:
    return say.byte_size(_rss_bytes(row))


def _time(row: ProcessRow) -> str:
    return say.UNKNOWN if row.age_seconds is None else say.runtime(row.age_seconds)


def _state(row: ProcessRow) -> str:
    return (row.vitals.state or say.UNKNOWN) if row.vitals else say.UNKNOWN


def _memory(row: ProcessRow) -> str:
    return say.byte_size(row.memory_bytes)


def _user(row: ProcessRow) -> str:
    return say.escape(row.user or (row.vitals.user if row.vitals else None) or say.UNKNOWN)


def _gpu_place(row: ProcessRow) -> str:
    """Sorts 10 after 2, and an instance below its GPU."""
    return re.sub(r"\d+", lambda found: found[0].zfill(6), row.gpu)


COLUMNS = (
    Column("PID", 10, lambda row: row.number, lambda row: float(row.pid or row.host_pid)),
    Column("user", 9, _user, _user, right=False),
    Column("GPU", 4, lambda row: row.gpu, _gpu_place, right=False),
    Column("memory", 9, _memory, lambda row: _number(row.memory_bytes), 0, True, True),
    Column("SM", 5, lambda row: say.percent(row.sm_percent), lambda row: _number(row.sm_percent), 70, True, True),
    Column("CPU", 6, _cpu, lambda row: _number(_cpu_percent(row)), 76, True, True),
    Column("RSS", 9, _rss, lambda row: _number(_rss_bytes(row)), 110, True, True),
    Column("time", 6, _time, lambda row: _number(row.age_seconds), 60, True, True),
    Column("state", 10, _state, _state, 130, False),
    Column("seen by", 22, lambda row: row.kind, lambda row: row.kind, 100, False),
    Column("command", 0, lambda row: row.command, lambda row: row.command, right=False),
)


@dataclass(frozen=True, slots=True)
class Sorting:
    """By which column, and which end first; None: as the GPUs are."""

    column: int | None = None
    reverse: bool = False

    def sorted(self, rows: list[ProcessRow]) -> list[ProcessRow]:
        """The rows in this order."""
        if self.column is None:
            return rows
        column = COLUMNS[self.column]
        return sorted(rows, key=column.order, reverse=column.largest_first is not self.reverse)


def process_rows(snapshot: Snapshot, wanted: str, vitals: dict[int, Vitals]) -> list[ProcessRow]:
    """By GPU; a trainer that no GPU lists (it trains on the CPU, or the list is unknown) comes last.

    Args:
        snapshot: What is known.
        wanted: The filter: text, or `user:`, `gpu:` and `pid:` with what has to be there; all words have to fit.
        vitals: What was read of some, by pid.
    """
    trainers = {rank.facts.pid: rank.facts for run in snapshot.runs for rank in run.ranks if run.state != "ended"}
    marked = {candidate.pid: _CAN_ATTACH[candidate.visibility] for candidate in unhooked(snapshot)}
    rows, seen = [], set()
    for gpu in snapshot.gpus:
        for process in gpu.processes or ():
            if process.pid is not None:
                seen.add(process.pid)
            rows.append(_of_gpu(process, gpu, snapshot, trainers, marked, vitals))
    for pid, facts in trainers.items():
        if pid not in seen:
            where, kind = facts.device or say.UNKNOWN, marked.get(pid) or _seen_by(facts)
            command, known = say.short_command(facts.command), vitals.get(pid)
            age_seconds = max(0.0, snapshot.wall_time - known.started) if known is not None else None
            rows.append(ProcessRow(pid, pid, where, kind, command, age_seconds=age_seconds, vitals=known))
    for candidate in unhooked(snapshot):
        if candidate.pid not in seen and candidate.pid not in trainers:
            pid, where = candidate.pid, gpu_indices(candidate, snapshot)
            command, age_seconds = say.short_command(candidate.command), candidate.age_seconds
            rows.append(
                ProcessRow(
                    pid,
                    pid,
                    where,
                    marked[pid],
                    command,
                    candidate.user,
                    age_seconds=age_seconds,
                    vitals=vitals.get(pid),
                )
            )
    return [row for row in rows if _fits(row, wanted)]


def _fits(row: ProcessRow, wanted: str) -> bool:
    user = _user(row).casefold()
    everything = f"{row.number} {user} {row.gpu} {row.command} {row.kind}".casefold()
    for word in wanted.casefold().split():
        name, colon, value = word.partition(":")
        if colon and name == "user":
            fits = value in user
        elif colon and name == "gpu":
            fits = any(value in (label, label.partition(":")[0]) for label in row.gpu.split(","))
        elif colon and name == "pid":
            fits = value == row.number
        else:
            fits = word in everything
        if not fits:
            return False
    return True


def _of_gpu(
    process: GpuProcess,
    gpu: GpuNow,
    snapshot: Snapshot,
    trainers: dict[int, RunFacts],
    marked: dict[int, str],
    vitals: dict[int, Vitals],
) -> ProcessRow:
    facts = trainers.get(process.pid) if process.pid is not None else None
    mark = marked.get(process.pid) if process.pid is not None else None
    command = say.short_command(facts.command) if facts else say.short_command((process.command or "").split())
    if not facts and not process.command:
        command = "not visible from this pid namespace" if process.pid is None else say.UNKNOWN
    age_seconds = process.age_seconds
    if age_seconds is not None and gpu.latest_status is not None:
        age_seconds += max(0, snapshot.time_ns - gpu.latest_status.time_ns) / 1e9
    return ProcessRow(
        process.pid,
        process.host_pid,
        gpu.facts.label,
        mark or (_seen_by(facts) if facts else "NVML"),
        command,
        process.user,
        process.memory_bytes,
        process.sm_percent,
        age_seconds,
        vitals.get(process.pid) if process.pid is not None else None,
    )


def _seen_by(facts: RunFacts) -> str:
    rank = f"rank {facts.rank}, " if facts.rank is not None else ""
    return rank + VISIBILITIES.get(facts.visibility, facts.visibility)


def shown_columns(width: int) -> list[int]:
    """The columns that a terminal of this width has."""
    return [index for index, column in enumerate(COLUMNS) if width >= column.from_width]


def process_head(view: View, count: int, sorting: Sorting, width: int, look: Look) -> list[Line]:
    """The heading with count and filter, and the columns' names; the one that sorts is marked."""
    words = [str(count)] + ([f"filter: {say.escape(view.filter)} (esc clears)"] if view.filter else [])
    writer = LineWriter(width, look).to(1, look.heading)
    for index in shown_columns(width):
        column = COLUMNS[index]
        largest = column.largest_first is not sorting.reverse
        mark = "" if index != sorting.column else (" v" if largest else " ^")
        style = look.bar_accent if mark else look.heading
        room = column.width or writer.room
        (writer.right if column.right else writer.left)(column.title + mark, room, style).gap(1, look.heading)
    title = "Processes on GPUs, and trainings on the CPU"
    return [rule(title, width, look, right=", ".join(words)), writer.line(look.heading)]


def process_line(row: ProcessRow, width: int, look: Look, mark: str = " ") -> Line:
    """One process."""
    writer = LineWriter(width, look).put(mark, look.accent)
    for index in shown_columns(width):
        column = COLUMNS[index]
        style = (
            look.accent if column.title == "PID" else look.dim if column.title in ("seen by", "state") else look.text
        )
        if column.width:
            (writer.right if column.right else writer.left)(column.words(row), column.width, style).gap(1)
        else:
            writer.put(column.words(row), style)
    return writer.line()


def process_reasons(snapshot: Snapshot | None, view: View, count: int, width: int, look: Look) -> list[Line]:
    """Why lists or columns are missing."""
    page = Page(width, look)
    if not count:
        page.gap()
        page.prose("No process matches the filter." if view.filter else "No process has a context on a GPU.", look.dim)
    for gpu in snapshot.gpus if snapshot is not None else ():
        status = gpu.latest_status
        if status is None:
            page.prose(f"GPU {gpu.facts.label}: its processes have not been read yet.", page.look.dim)
        elif status.processes is None:
            reason = status.unavailable.get("processes", "the driver does not say")
            page.prose(f"GPU {gpu.facts.label}: process list unknown: {reason}", page.look.dim)
        elif snapshot is not None and snapshot.time_ns - status.time_ns > OLD_STATUS_NS:
            age = say.age(snapshot.time_ns - status.time_ns)
            page.prose(f"GPU {gpu.facts.label}: its processes were read {age} ago.", page.look.warning)
    return page.lines


class OpenProcess(Message):
    """The user wants all that is known of one process."""

    def __init__(self, row: ProcessRow) -> None:
        super().__init__()
        self.row = row


class OrderChosen(Message):
    """The user clicked a head: the order is to be remembered."""


class ProcessList(CursorList[ProcessRow]):
    """The rows with a cursor; a click on a head sorts by it, another one turns the order round."""

    HEAD_LINES: ClassVar[int] = 2

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(lambda row: (row.host_pid, row.gpu), OpenProcess, id=id)
        self.sorting = Sorting()

    def update(self, view: View, rows: list[ProcessRow], width: int, height: int, look: Look) -> None:
        """`height` lines of the list below its head."""
        self.hold(tuple(self.sorting.sorted(rows)), height)
        lines = process_head(view, len(rows), self.sorting, width, look)
        for index, row in enumerate(self.entries[self.top : self.top + height], start=self.top):
            at_cursor = index == self.cursor
            line = process_line(row, width, look, look.glyphs.cursor if at_cursor else " ")
            lines.append(selected(line, look) if at_cursor else line)
        self.show(lines + blanks(height + self.HEAD_LINES - len(lines), width, look), width)

    def on_click(self, event: events.Click) -> None:
        if event.y != 1:
            super().on_click(event)
            return
        start = 1
        for index in shown_columns(self.size.width):
            end = start + (COLUMNS[index].width or self.size.width) + 1
            if start <= event.x < end:
                self.sort_by(index)
                self.post_message(OrderChosen())
            start = end

    def sort_by(self, column: int) -> None:
        """By this column; again: the other end first."""
        again = self.sorting.column == column
        self.sorting = Sorting(column, not self.sorting.reverse if again else False)
        self._ask_repaint()

    def next_column(self, width: int) -> None:
        """Sorts by the next column that is shown, after the last one as the GPUs are."""
        shown: list[int | None] = [None, *shown_columns(width)]
        now = self.sorting.column if self.sorting.column in shown else None
        self.sorting = Sorting(shown[(shown.index(now) + 1) % len(shown)])
        self._ask_repaint()


READ_SECONDS = 2.0


class ProcessesScreen(ViewScreen):
    """Who uses the GPUs."""

    AUTO_FOCUS = "#processes"
    CAN_FILTER = True
    PLACE = "processes"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("page"), *bindings("processes")]

    def __init__(self) -> None:
        super().__init__()
        self._list = ProcessList(id="processes")
        self._reasons = LinesWidget(id="reasons")
        self._vitals: dict[int, Vitals] = {}
        self._reader = VitalsReader()
        self._is_reading = False

    def content(self) -> Iterable[Widget]:
        """The list, and what is missing in it."""
        remembered = self.dashboard.remembered
        titles = [column.title for column in COLUMNS]
        if remembered.process_order in titles:
            self._list.sorting = Sorting(titles.index(remembered.process_order), remembered.process_order_inverted)
        return (self._list, self._reasons)

    def on_mount(self) -> None:
        """Reads what the processes use, again and again, as long as the page is there."""
        super().on_mount()
        self._read()
        self.set_interval(READ_SECONDS, self._read)

    def _read(self) -> None:
        if self.is_live() and not self._is_reading:  # one that waits for an answer is not joined by others
            self.run_worker(self._read_vitals())

    async def _read_vitals(self) -> None:
        snapshot = self.dashboard.view.snapshot
        rows = process_rows(snapshot, "", {}) if snapshot is not None else []
        pids = [row.pid for row in rows if row.pid is not None]
        self._is_reading = True
        try:
            self._vitals = await in_background(self._reader.read, pids)
        finally:
            self._is_reading = False
        self.show()

    def is_live(self) -> bool:
        """Whether the processes are those of this machine."""
        snapshot = self.dashboard.view.snapshot
        return snapshot is not None and snapshot.origin.kind == "live"

    def keys(self, view: View) -> list[Key]:
        """Less attaching and signals, where there is nothing to attach to."""
        replays = view.snapshot is not None and view.snapshot.replay is not None
        states: set[State] = set() if replays else {"live"}
        if self._list.entries:
            states.add("process")
        return bottom_line(self.PLACE, frozenset(states))

    def draw(self, view: View, width: int, height: int, look: Look) -> None:
        snapshot = view.snapshot
        rows = process_rows(snapshot, view.filter, self._vitals) if snapshot is not None else []
        reasons = process_reasons(snapshot, view, len(rows), width, look)[: height // 3]
        entries = max(1, min(len(rows), height - 2 - ProcessList.HEAD_LINES - len(reasons)))
        set_height(self._list, entries + ProcessList.HEAD_LINES)
        self._list.update(view, rows, width, entries, look)
        rest = height - 2 - ProcessList.HEAD_LINES - entries
        self._reasons.show(reasons[:rest] + blanks(rest - len(reasons), width, look), width)

    def on_open_process(self, message: OpenProcess) -> None:
        row = message.row
        if row.pid is None:
            self.notify("Its pid is one of the host, which this container does not see.", severity="warning")
        elif not self.is_live():
            self.notify("Only processes of this machine, now, have a page.", severity="warning")
        else:
            self.app.push_screen(ProcessScreen(row))

    def action_open(self) -> None:
        self._list.action_open()

    def action_sort(self) -> None:
        self._list.next_column(self.size.width)
        self._remember()

    def action_invert(self) -> None:
        sorting = self._list.sorting
        if sorting.column is None:
            self.notify("The order is that of the GPUs; o sorts by a column.")
        else:
            self._list.sort_by(sorting.column)
            self._remember()

    def on_order_chosen(self) -> None:
        self._remember()

    def _remember(self) -> None:
        sorting = self._list.sorting
        title = "" if sorting.column is None else COLUMNS[sorting.column].title
        self.dashboard.remember(process_order=title, process_order_inverted=sorting.reverse)

    def action_signal(self) -> None:
        row = self._list.current
        if row is None or row.pid is None:
            self.notify("There is no process here to send a signal to.", severity="warning")
        else:
            ask_for_signal(self, row)


def ask_for_signal(screen: ViewScreen, row: ProcessRow) -> None:
    """The question, or why there is none."""
    snapshot = screen.dashboard.view.snapshot
    if screen.dashboard.read_only:
        screen.notify("gpuwatch was started with --read-only: it sends no signals.", severity="warning")
    elif snapshot is None or snapshot.origin.kind != "live":
        screen.notify("Signals are for processes of this machine, now.", severity="warning")
    else:
        screen.app.push_screen(SignalScreen(row))


def cuda_devices(variables: Mapping[str, str], gpus: Sequence[GpuNow]) -> tuple[str, ...] | None:
    """The GPU behind each index of a process's CUDA, by our labels; None where that is not certain.

    CUDA counts fastest first unless CUDA_DEVICE_ORDER says PCI_BUS_ID, as NVML does: the same for equal GPUs only.
    """
    wanted = variables.get("CUDA_VISIBLE_DEVICES")
    whole = [gpu.facts for gpu in gpus if gpu.facts.mig_parent is None]
    by_address = variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({each.name for each in whole}) == 1
    if wanted is None:
        return None
    found: list[str] = []
    for word in filter(None, (word.strip() for word in wanted.split(","))):
        if word.isdecimal():
            fitting = [each.label for each in whole if each.index == int(word)] if by_address else []
        else:
            fitting = [gpu.facts.label for gpu in gpus if gpu.facts.uuid.startswith(word)]
        if len(fitting) != 1:
            return None
        found += fitting
    return tuple(found)


def details_page(
    rows: Sequence[ProcessRow],
    details: Details | None,
    is_read: bool,
    width: int,
    look: Look,
    gpus: Sequence[GpuNow] = (),
) -> list[Line]:
    """All of one process: `rows` are those of each GPU that it is on."""
    page = Page(width, look)
    row = rows[0]
    page.heading(f"Process {row.number}  {row.command}")
    if details is None:
        page.prose("It is gone." if is_read else "Reading it.", look.dim)
        return page.lines
    vitals = details.vitals
    page.pair("command", say.command_line(details.command))
    page.pair("user", vitals.user or say.UNKNOWN)
    for each in rows:
        page.pair("GPU", f"{each.gpu}, {say.byte_size(each.memory_bytes)}, SM {say.percent(each.sm_percent)}")
    # In a container the indices are those of the GPUs that it was given.
    is_apart = details.container is not None or details.pod is not None
    devices = None if is_apart else cuda_devices(details.variables, gpus)
    if devices:
        page.pair("CUDA devices", ", ".join(f"cuda:{place} is GPU {label}" for place, label in enumerate(devices)))
    page.pair("seen by", row.kind)
    page.pair("state", vitals.state or say.UNKNOWN)
    page.pair("runtime", _time(row))
    threads = say.UNKNOWN if vitals.threads is None else say.count(vitals.threads)
    page.pair("CPU and memory", f"CPU {_cpu(row)}, RSS {say.byte_size(vitals.rss_bytes)}")
    page.pair("threads", threads)
    files = say.UNKNOWN if details.open_files is None else say.count(details.open_files)
    most = f" of {say.count(details.most_open_files)}" if details.most_open_files is not None else ""
    page.pair("open files", f"{files}{most}")
    page.pair("limits", _limits(details))
    page.pair("folder", details.cwd or say.UNKNOWN)
    for name, text in (("Slurm job", details.slurm_job), ("pod", details.pod), ("container", details.container)):
        if text:
            page.pair(name, text)
    page.heading("Tree")
    for depth, name in enumerate(reversed(details.ancestors)):
        page.prose(say.escape(name), look.dim, indent=2 + 2 * depth)
    own = 2 + 2 * len(details.ancestors)
    page.prose(f"{details.pid} {row.command}", look.accent, indent=own)
    for below, name in details.children[:MOST_CHILDREN]:
        page.prose(say.escape(name), indent=own + 2 + 2 * below)
    if len(details.children) > MOST_CHILDREN:
        page.prose(f"and {len(details.children) - MOST_CHILDREN} more", look.dim, indent=own + 2)
    page.heading("Environment of the training")
    for name, text in details.variables.items():
        page.pair(name, text)
    if not details.variables:
        page.prose("None of its variables tell how it was launched, or they are not readable.", look.dim)
    return page.lines


def _limits(details: Details) -> str:
    """Cores and memory by cpuset and control group, and what it may pin; "-" is unknown."""
    cores = [float(details.affinity_cores)] if details.affinity_cores is not None else []
    if details.cpu_limit is not None and details.cpu_limit.quota_cores is not None:
        cores.append(details.cpu_limit.quota_cores)
    memory = details.memory_limit
    within = (
        f"{say.byte_size(memory.used_bytes)} of {say.byte_size(memory.limit_bytes)}"
        if memory is not None and memory.limit_bytes is not None
        else say.UNKNOWN
    )
    locked = "unlimited" if details.is_locking_unlimited else say.byte_size(details.most_locked_bytes)
    return f"{min(cores):g} cores, memory {within}, memlock {locked}" if cores else f"memory {within}, memlock {locked}"


MOST_CHILDREN = 24


def _read_one(reader: VitalsReader, pid: int) -> tuple[Details | None, Vitals | None]:
    return details_of(pid), reader.read([pid]).get(pid)


class ProcessScreen(PageScreen):
    """One process."""

    PLACE = "process"
    BINDINGS: ClassVar[list[BindingType]] = bindings("process")

    def __init__(self, row: ProcessRow) -> None:
        super().__init__()
        self._row = row
        self._details: Details | None = None
        self._vitals: Vitals | None = None
        self._reader = VitalsReader()
        self._is_read = self._is_reading = False

    def on_mount(self) -> None:
        super().on_mount()
        self._read()
        self.set_interval(READ_SECONDS, self._read)

    def _read(self) -> None:
        if not self._is_reading:
            self.run_worker(self._read_details())

    async def _read_details(self) -> None:
        if self._row.pid is not None:
            self._is_reading = True
            try:
                details, vitals = await in_background(_read_one, self._reader, self._row.pid)
            finally:
                self._is_reading = False
            opened = self._row.vitals.started if self._row.vitals is not None else None
            is_other = details is not None and opened is not None and abs(details.vitals.started - opened) > 1.0
            self._details, self._vitals = (None, None) if is_other else (details, vitals)
            self._is_read = True
            self.show()

    def page(self, view: View, width: int, height: int, look: Look) -> list[Line]:
        snapshot = view.snapshot
        vitals = {self._row.pid: self._vitals} if self._row.pid is not None and self._vitals is not None else {}
        now = process_rows(snapshot, "", vitals) if snapshot is not None else []
        rows = [row for row in now if row.host_pid == self._row.host_pid]
        gpus = snapshot.gpus if snapshot is not None else ()
        return details_page(rows or [self._row], self._details, self._is_read, width, look, gpus)

    def action_signal(self) -> None:
        ask_for_signal(self, self._row)


_MEANINGS = {
    "SIGTERM": "asks it to end; most programs clean up first",
    "SIGINT": "as Ctrl-C does: many training scripts save and end",
    "SIGKILL": "ends it at once: nothing is saved, nothing cleaned up",
}


class SignalWanted(Message):
    """The user chose this signal."""

    def __init__(self, number: Signals) -> None:
        super().__init__()
        self.number = number


class SignalList(CursorList[Signals]):
    """The signals that can be sent."""

    def __init__(self) -> None:
        super().__init__(_signal_key, SignalWanted, id="signals")

    def update(self, row: ProcessRow, width: int, height: int, look: Look) -> None:
        """The question, and a line per signal."""
        self.hold(SIGNALS, height)
        who = f"{row.number} of {say.escape(row.user or 'an unknown user')}"
        lines = [rule(f"Send a signal to process {who}: {row.command}", width, look, style=look.warning)]
        for index, number in enumerate(self.entries):
            writer = LineWriter(width, look).put(look.glyphs.cursor if index == self.cursor else " ", look.accent)
            writer.left(f" {number.name}", 10, look.strong).put(_MEANINGS[number.name], look.text)
            lines.append(selected(writer.line(), look) if index == self.cursor else writer.line())
        self.show(lines + blanks(height + 1 - len(lines), width, look), width)


def _signal_key(number: Signals) -> Hashable:
    return number


class SignalScreen(ViewScreen):
    """The question before a signal is sent; enter sends the one under the cursor, esc none."""

    AUTO_FOCUS = "#signals"
    PLACE = "signal"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("page"), *bindings("signal")]

    def __init__(self, row: ProcessRow) -> None:
        super().__init__()
        self._row = row
        self._list = SignalList()
        self._started = row.vitals.started if row.vitals is not None else None

    def content(self) -> Iterable[Widget]:
        return (self._list,)

    def on_mount(self) -> None:
        super().on_mount()
        self.run_worker(self._identify(), exclusive=True)

    async def _identify(self) -> None:
        """Notes which process it is that the question is about."""
        if self._row.pid is not None and self._started is None:
            found = await in_background(details_of, self._row.pid)
            self._started = found.vitals.started if found is not None else None

    def draw(self, view: View, width: int, height: int, look: Look) -> None:
        set_height(self._list, height - 2)
        self._list.update(self._row, width, height - 3, look)

    def action_open(self) -> None:
        self._list.action_open()

    async def on_signal_wanted(self, message: SignalWanted) -> None:
        """Sends it, and says what came of it."""
        pid, number = self._row.pid, message.number
        if pid is None or self._started is None:
            self.notify(f"Process {self._row.number} is gone, or not readable yet.", severity="warning")
            return
        problem = await in_background(send, pid, self._started, number)
        said = problem or f"{number.name} was sent to process {pid}."
        self.notify(said, severity="warning" if problem else "information", markup=False)
        self.dashboard.pop_screen()
