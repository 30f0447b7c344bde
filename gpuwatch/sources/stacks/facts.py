"""What is known of a trainer that has no hook: by /proc, and by the loaders that its loops read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from gpuwatch.foreign import read_program, whereabouts
from gpuwatch.procfs import link_target, listed, read_status
from gpuwatch.reader.refusals import CannotReadError, Reason
from gpuwatch.samples import LoaderFacts, RunFacts
from gpuwatch.sources.discovery.census import mapped_library, torch_version
from gpuwatch.sources.hook_link.rendezvous import Processes
from gpuwatch.sources.host.identify import HOOK_SILENT, carries_hook
from gpuwatch.sources.host.machine import core_list
from gpuwatch.sources.stacks.classify import Owner, Places
from gpuwatch.sources.stacks.loops import Site
from gpuwatch.sources.stacks.source_text import SourceText

_GPU_DEVICES: Final = re.compile(r"/dev/(?:nvidia\d+|nvidia-uvm|dxg)")
_MOST_DESCRIPTORS: Final = 65_536  # 0.1 s
_RANKS: Final = ("rank", "local_rank", "world_size", "local_world_size")


class ProcessFacts:
    """The facts of one process that hold as long as it runs, and its device."""

    def __init__(self, pid: int, start_ticks: int, proc_root: Path) -> None:
        self.pid = pid
        self.start_ticks = start_ticks
        self.trainer = f"{pid}.{start_ticks}"
        self._proc_root = proc_root
        self._whereabouts = whereabouts(pid, proc_root)
        self._folder = f"{proc_root}/{pid}"
        self.command = read_program(proc_root, pid)
        environment = Processes(proc_root).environment(pid) or {}
        self._group, self._ranks = ranks(environment)
        self._how_to_see_more = HOOK_SILENT if carries_hook(proc_root, pid) else None
        self._cwd = link_target(f"{self._folder}/cwd")
        self.device: str | None = None
        self.torch: str | None = None
        self._torch_mapped = False

    def refresh(self) -> bool:
        """Reads what may still change; whether it did."""
        before = self.device, self.torch
        if not self._torch_mapped:
            self._find_torch()
        if self.device != "cuda":
            self.device = "cuda" if self._holds_gpu() else "cpu" if self._torch_mapped else None
        return before != (self.device, self.torch)

    def sampled(
        self, now_ns: int, version: tuple[int, int], loaders: tuple[LoaderFacts, ...], notes: tuple[str, ...] = ()
    ) -> RunFacts:
        """The facts of a process whose stacks are read."""
        python = f"{version[0]}.{version[1]}"
        return self._facts(now_ns, python, loaders, "sampled", self._how_to_see_more, notes)

    def unreadable(self, now_ns: int, error: CannotReadError) -> RunFacts:
        """The facts of a process whose stacks cannot be read, and how they could."""
        hint = error.with_cure if error.is_lasting else error.cure  # no cure of those says what is wrong
        if error.reason is Reason.PERMISSION and self._how_to_see_more is not None:
            hint = self._how_to_see_more
        return self._facts(now_ns, None, (), "process", hint, (error.sentence,))

    def _facts(
        self,
        now_ns: int,
        python: str | None,
        loaders: tuple[LoaderFacts, ...],
        visibility: Literal["sampled", "process"],
        how_to_see_more: str | None,
        notes: tuple[str, ...],
    ) -> RunFacts:
        return RunFacts(
            time_ns=now_ns,
            trainer=self.trainer,
            pid=self.pid,
            start_ticks=self.start_ticks,
            command=self.command,
            cwd=self._cwd,
            python=python,
            torch=self.torch,
            group=self._group,
            rank=self._ranks["rank"],
            local_rank=self._ranks["local_rank"],
            world_size=self._ranks["world_size"],
            local_world_size=self._ranks["local_world_size"],
            device=self.device,
            cpu_affinity=self._affinity(),
            loaders=loaders,
            user=self._whereabouts.user,
            mount_namespace=self._whereabouts.mount_namespace,
            boot=self._whereabouts.boot,
            visibility=visibility,
            how_to_see_more=how_to_see_more,
            notes=notes,
        )

    def _find_torch(self) -> None:
        library = mapped_library(self._proc_root, self.pid)
        if library is not None and library.is_torch:
            self._torch_mapped = True
            self.torch = torch_version(self._proc_root, self.pid, library)

    def _holds_gpu(self) -> bool:
        folder = f"{self._folder}/fd"
        opened = (link_target(f"{folder}/{descriptor}") for descriptor in listed(folder)[:_MOST_DESCRIPTORS])
        return any(_GPU_DEVICES.fullmatch(path) for path in opened if path is not None)

    def _affinity(self) -> int | None:
        cores = read_status(self.pid, self._proc_root).get("Cpus_allowed_list")
        return None if cores is None else len(core_list(cores.encode()))


def ranks(environment: Mapping[str, str]) -> tuple[str | None, dict[str, int | None]]:
    """The group and the ranks, formed as the hook forms them so that hooked and unhooked ranks join in one run."""
    numbers = {field: _number(environment.get(field.upper())) for field in _RANKS}
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if not address or not port:
        return None, numbers
    import hashlib  # loads OpenSSL, 4 MB: only for distributed jobs

    job = ":".join(filter(None, (address, port, environment.get("TORCHELASTIC_RUN_ID"))))
    return hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:16], numbers


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


_CallSite = tuple["str | None", "int | None"]


class LoaderCatalogue:
    """Describes loops' loaders; where one was built is looked up once per place."""

    def __init__(self, text: SourceText, places: Places) -> None:
        self._text = text
        self._places = places
        self._call_sites: dict[tuple[str, int | None, str | None], _CallSite] = {}

    def facts(self, sites: Sequence[Site], main_file: str | None) -> tuple[LoaderFacts, ...]:
        """All loaders as they are now."""
        return tuple(self._describe(site, main_file) for site in sites)

    def _describe(self, site: Site, main_file: str | None) -> LoaderFacts:
        key = site.code[0], site.line, main_file
        if key not in self._call_sites:
            self._call_sites[key] = self._find(site.code[0], site.line, main_file)
        file, line = self._call_sites[key]
        settings = LoaderFacts(0) if site.state is None else site.state.settings
        return replace(
            settings,
            loader=site.number or 0,
            file=file,
            line=line,
            role=site.reported_role,
            loop_file=site.code[0],
            loop_line=site.line,
        )

    def _find(self, loop_file: str, loop_line: int | None, main_file: str | None) -> _CallSite:
        for file, line in ((loop_file, loop_line), (main_file, None)):
            if file is None or self._places.of(file).owner is not Owner.USER:
                continue
            found = self._text.loader_line(file, line)
            if found is not None:
                return file, found
        return None, None
