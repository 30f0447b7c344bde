"""Words about attaching: who can be attached to, whom the watch is narrowed to."""

from __future__ import annotations

from gpuwatch.dashboard import formatting as say
from gpuwatch.monitor.snapshot import Snapshot
from gpuwatch.samples import Candidate
from gpuwatch.timeline.runs import title_of


def candidate_name(candidate: Candidate) -> str:
    """How a sentence names a process: its pid to act on, and its script."""
    return f"{candidate.pid} {say.escape(title_of(candidate.command))}"


def candidates_of(snapshot: Snapshot, wanted: str = "") -> tuple[Candidate, ...]:
    """The processes that can be attached to and hold this text, in the order in which they were found worth it."""
    wanted = wanted.casefold()
    return tuple(
        candidate
        for candidate in snapshot.candidates
        if wanted in f"{candidate.pid} {candidate.user} {' '.join(candidate.command)}".casefold()
    )


def unhooked(snapshot: Snapshot) -> tuple[Candidate, ...]:
    """The processes that train without a hook and are not watched yet."""
    seen = {rank.facts.pid for run in snapshot.runs for rank in run.ranks if rank.facts.rung in ("exact", "sampled")}
    return tuple(
        candidate
        for candidate in snapshot.candidates
        if candidate.rung != "exact" and candidate.pid not in seen and candidate.pid != snapshot.attached_pid
    )


def gpu_indices(candidate: Candidate, snapshot: Snapshot) -> str:
    """The GPUs that it computes on: "0,1"."""
    used = [gpu.facts.index for gpu in snapshot.gpus if gpu.facts.uuid in candidate.gpu_uuids]
    return ",".join(map(str, sorted(used))) or say.UNKNOWN


def offer(snapshot: Snapshot) -> str:
    """What the user can do about processes that train unseen; empty where there is none, and in a replay."""
    count = len(unhooked(snapshot))
    if not count or snapshot.origin.kind == "recording":
        return ""
    return f"{count} process{' trains' if count == 1 else 'es train'} here without a hook: press a to attach"


def attached_words(snapshot: Snapshot) -> str:
    """Whom the watch is narrowed to: "attached to 4711 train.py"; empty where it is not."""
    pid = snapshot.attached_pid
    if pid is None:
        return ""
    named = [candidate_name(candidate) for candidate in snapshot.candidates if candidate.pid == pid]
    named += [f"{pid} {say.escape(run.title)}" for run in snapshot.runs if pid in (r.facts.pid for r in run.ranks)]
    return f"attached to {named[0] if named else pid}"
