"""The fixes of copies, logging, saving, evaluating and crowded threads, applied to a script: what each one changes."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest
from edit_sources import FILE, changed, line_of, refused
from scene_builder import check, gpu, host, loader, machine, phase, process, rank, run, run_case, scene, workers
from stack_windows import line, watched

from gpuwatch.diagnosis.finding import Edit, IntervalEdit
from gpuwatch.timeline.windows import RankWindow, Scene

SCRIPT = dedent(
    """
    import torch
    from torch.utils.data import DataLoader
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter()
    loader = DataLoader(data, batch_size=32, num_workers=12)
    for epoch in range(90):
        for step, (images, labels) in enumerate(loader):
            images = images.to("cuda")
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                writer.add_histogram("weights", net.weight, step)
            print(f"step {step}: {loss.item():.3f}")
        evaluate(net)
        torch.save(net.state_dict(), "last.pt")
    """
)
LOADER = loader(file=FILE, line=line_of(SCRIPT, "DataLoader(d"), num_workers=12, pin_memory=False, batches_per_epoch=50)
INSTALLED = "/env/lib/python3.11/site-packages/accelerate/data_loader.py"


def current_line_in(phase_name: str, share: float, text: str, **fields: object) -> RankWindow:
    """A hooked rank whose stacks stand in the line with that text for a share of the time."""
    hot = line(phase_name, line_of(SCRIPT, text), share, file=FILE, text=text)
    return rank(stacks=watched({phase_name: share}, lines=[hot]), loader=LOADER, **fields)  # type: ignore[arg-type]


def of(rule: str, moment: Scene) -> tuple[Edit, ...]:
    draft = check(rule, run_case(moment))
    assert draft is not None and draft.fix is not None and draft.fix.edit is not None
    return (draft.fix.edit, *draft.fix.also)


def of_phase(rule: str, kind: str, text: str, **fields: object) -> tuple[Edit, ...]:
    place = {"file": FILE, "line": line_of(SCRIPT, text)}
    total = phase(
        kind, **({"share": 0.3, "seconds": 18.0, "longest_seconds": 9.0, "every_steps": 50.0} | place | fields)
    )
    return of(rule, scene(run(rank(phases={kind: total}, loader=LOADER))))


def test_copies_are_pinned_where_the_loader_is_made_and_do_not_block_where_they_are() -> None:
    moment = scene(run(current_line_in("copy", 0.3, 'images.to("cuda")', copy_share=0.3)), gpus=[gpu(utilization=70)])
    assert sorted(changed(of("pageable-transfer", moment), SCRIPT)) == [
        '+        images = images.to("cuda", non_blocking=True)',
        "+loader = DataLoader(data, batch_size=32, num_workers=12, pin_memory=True)",
        '-        images = images.to("cuda")',
        "-loader = DataLoader(data, batch_size=32, num_workers=12)",
    ]


def test_a_copy_of_a_library_is_the_librarys() -> None:
    hot = line("copy", 12, 0.3, file=INSTALLED)
    trained = rank(stacks=watched({"copy": 0.3}, lines=[hot]), loader=LOADER, copy_share=0.3)
    assert len(of("pageable-transfer", scene(run(trained), gpus=[gpu(utilization=70)]))) == 1


def test_asking_for_numbers_and_logging_come_under_an_interval_or_a_longer_one() -> None:
    asked = of("sync-per-step", scene(run(current_line_in("sync", 0.3, "loss.item()")), gpus=[gpu(utilization=70)]))
    assert changed(asked, SCRIPT) == [
        '-        print(f"step {step}: {loss.item():.3f}")',
        "+        if step % 30 == 0:",
        '+            print(f"step {step}: {loss.item():.3f}")',
    ]
    logged = of("log-stall", scene(run(current_line_in("log", 0.2, "add_histogram")), gpus=[gpu(utilization=70)]))
    assert changed(logged, SCRIPT) == ["-        if step % 5 == 0:", "+        if step % 100 == 0:"]


@pytest.mark.parametrize(
    ("rule", "kind", "text", "times"),
    [("checkpoint-stall", "checkpoint", "torch.save", 21), ("eval-stall", "eval", "evaluate(net)", 4)],
)
def test_what_ends_every_epoch_ends_every_kth(rule: str, kind: str, text: str, times: int) -> None:
    edits = of_phase(rule, kind, text)
    assert isinstance(edits[0], IntervalEdit) and edits[0].present == (50, 1)
    assert changed(edits, SCRIPT)[1] == f"+    if (epoch + 1) % {times} == 0 or epoch + 1 == 90:"


def test_a_run_started_by_a_library_is_changed_where_it_was_started() -> None:
    source = (
        "from transformers import Trainer, TrainingArguments\nargs = TrainingArguments('out', save_steps=50)\n"
        "trainer = Trainer(args=args)\ntrainer.train()\n"
    )
    made = loader(file=FILE, line=4, library="transformers")
    total = phase("checkpoint", share=0.3, longest_seconds=9.0, every_steps=50.0, file=INSTALLED, line=7)
    edits = of("checkpoint-stall", scene(run(rank(phases={"checkpoint": total}, loader=made))))
    assert changed(edits, source)[1] == "+args = TrainingArguments('out', save_steps=1050)"


def crowd(*libraries: str) -> Scene:
    made_by = workers(12, cpu_cores=0.66, active_threads=192, system_share=0.4)
    held = process(cores=8, tree_cores=8.0, latest={"libraries": libraries})
    trained = rank(step=0.1, wait=0.04, gap=0.04, loader=LOADER, workers=made_by, process=held)
    return scene(run(trained), gpus=[gpu(utilization=60)], host=host(cpu_percent=100), machine=machine(8))


def test_workers_get_one_thread_each_by_a_function_of_their_own() -> None:
    edits = of("thread-oversubscription", crowd("cv2"))
    lines = changed(edits, SCRIPT)
    assert "+def one_thread_per_worker(worker_id):" in lines and "+    cv2.setNumThreads(0)" in lines
    assert lines[-1].endswith("num_workers=12, worker_init_fn=one_thread_per_worker)")
    taken = SCRIPT.replace("num_workers=12", "num_workers=12, worker_init_fn=seed")
    assert "already has a worker_init_fn: put cv2.setNumThreads(0) and" in refused(edits, taken)


def test_arrow_has_a_call_for_it_too() -> None:
    assert "+    pyarrow.set_cpu_count(1)" in changed(of("thread-oversubscription", crowd("arrow")), SCRIPT)


def test_loading_that_a_wait_for_the_gpu_exposes_is_hidden_again_for_the_most_part() -> None:
    def gain(workers: int) -> tuple[float, float]:
        trained = current_line_in("sync", 0.3, "loss.item()")
        trained = replace(trained, train_loader=replace(LOADER, num_workers=workers))
        draft = check("sync-per-step", run_case(scene(run(trained), gpus=[gpu(utilization=80)])))
        assert draft is not None and draft.gain is not None
        return draft.gain.low, draft.gain.high

    assert gain(0) == pytest.approx((1 / 0.85, 1 / 0.8), abs=0.001)
    assert gain(4) == pytest.approx((1 / 0.9, 1 / 0.8), abs=0.001)
