"""The process runs on CPU cores far from its GPU.

Means:
    On a machine with several sockets each GPU is attached to one of them. Launches, copies and batches of a process on
    another socket go through the link between the sockets.
Evidence:
    The node of the GPU as the kernel knows it, and the CPU time of the training thread and the workers by the node
    they were seen on.
Fires:
    80% or more of that time on nodes without a GPU of this rank.
Clears:
    Below 50%.
Not when:
    The machine has one node, or the GPU's node is not known (-1). The process may not use all cores: somebody placed
    it on purpose.
Causes:
    A launcher without bindings, or one that binds all ranks to the first node.
Fix:
    numactl --cpunodebind and --membind with the GPU's node; with torchrun one binding per rank.
Gain:
    A hint: no figure could be verified.
Verify:
    CPU time on the GPU's node.
Source:
    PyTorch tuning guide, NUMA section.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import listed, percent
from gpuwatch.timeline.windows import RankWindow


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.80, "of the CPU time passes on another node: reported from here on")
    clear_share: float = threshold(0.50, "until less does", bounded_by="fire_share")


@rule("numa-misplaced", family="host", subject="run", level=Level.E1, thresholds=Thresholds)
def numa_misplaced(case: RunCase, limits: Thresholds) -> Draft | None:
    if case.machine is None or not case.machine.gpu_numa_nodes:
        return None
    for rank in case.run.ranks:
        draft = _of_rank(case, rank, limits)
        if draft is not None:
            return draft
    return None


def _of_rank(case: RunCase, rank: RankWindow, limits: Thresholds) -> Draft | None:
    assert case.machine is not None
    process = rank.process
    nodes = dict(case.machine.gpu_numa_nodes)
    used = set(rank.facts.gpu_uuids)
    gpus = [gpu for gpu in case.gpus if gpu.facts.uuid in used] if used else list(case.gpus)
    places = [(gpu, nodes.get(gpu.facts.kernel_address)) for gpu in gpus]
    near = {node for _, node in places if node is not None}
    if process is None or len(process.node_shares) < 2 or not near or None in {node for _, node in places}:
        return None
    if process.latest.affinity_cores is None or process.latest.affinity_cores < case.machine.cpu_count:
        return None
    far = 1.0 - sum(share for node, share in enumerate(process.node_shares) if node in near)
    if far < limits.clear_share:
        return None
    node, where = min(near), listed(f"{gpu_name(gpu)} is on node {place}" for gpu, place in places)
    who = f"Rank {rank.facts.rank}" if rank.facts.rank is not None else "The run"
    bind = f"numactl --cpunodebind={node} --membind={node}"
    return Draft(
        summary=f"{who} runs {percent(far)} of its CPU time far from its GPU: {where}",
        severity=Severity.INFO,
        level=Level.E1,
        evidence=(
            Measure("far_share", round(far, 4), f"{percent(far)} of the CPU time on other nodes"),
            *(
                Measure(f"node_{number}_share", round(share, 4), f"node {number}: {percent(share)} of the CPU time")
                for number, share in enumerate(process.node_shares)
            ),
            Measure("gpu_node", node, where),
        ),
        fires=far >= limits.fire_share,
        fix=Fix(
            text=f"Bind the process and its memory to node {node}; with torchrun, each rank to its GPU's node",
            code=f"{bind} {shlex.join(rank.facts.command)}",
            value=node,
        ),
        hint="no promise: no figure for the gain could be verified",
        verify=f"Most of the CPU time on node {node}, and samples per second up",
    )
