"""The loaders that loops were seen to read, with the line that built each."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.samples.run import LoaderFacts
from gpuwatch.sources.stacks.places import Owner, Places
from gpuwatch.sources.stacks.sites import Site
from gpuwatch.sources.stacks.source_text import SourceText

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
        number, role, state = site.number or 0, site.told_role, site.state
        if state is None:
            return LoaderFacts(number, file, line, role=role, loop_file=site.code[0], loop_line=site.line)
        return LoaderFacts(
            loader=number,
            file=file,
            line=line,
            dataset=state.dataset,
            iterable=state.iterable,
            num_workers=state.num_workers,
            batch_size=state.batch_size,
            pin_memory=state.pin_memory,
            persistent_workers=state.persistent_workers,
            prefetch_factor=state.prefetch_factor,
            in_order=state.in_order,
            drop_last=state.drop_last,
            batches_per_epoch=state.batches_per_epoch,
            role=role,
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
