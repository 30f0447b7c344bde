"""The main job with nothing but real processes: a training runs, the report names its fault and the line to change.

Each training prints a line per step, so a report starts when enough steps are there and not after a guess.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.integration.command_line import PATIENCE_SECONDS, ROOT, gpuwatch, lonely_environment
from tests.integration.forked_python import ForkedPython
from tests.integration.hook_programs import SITE
from tests.integration.process_groups import kill_group

SLOW_DATASET = ROOT / "benchmarks" / "scripts" / "slow_dataset.py"
SETTLED_STEPS = 30
LOADING_RULES = {"data-starvation", "workers-zero", "workers-too-few", "slow-samples", "epoch-start-stall"}

TRAINING = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

class Images(Dataset):
    def __init__(self, length, read_seconds):
        self.length, self.read_seconds = length, read_seconds
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        if self.read_seconds:
            time.sleep(self.read_seconds)
        return torch.ones(3, 16, 16) * index, index % 10

class Held(Images):
    pass

train_loader = DataLoader(Images(1_000_000, {read_seconds}), batch_size=8)
eval_loader = DataLoader({held}(32, 0.01), batch_size=8)
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)

def evaluate():
    net.eval()
    with torch.no_grad():
        for images, labels in eval_loader:
            net(images)
    net.train()

for step, (images, labels) in enumerate(train_loader, 1):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(images), labels)
    time.sleep(0.03)  # as long on any machine
    loss.backward()
    optimizer.step()
    print(step, flush=True)
    if step % {evaluated_every} == 0:
        evaluate()
"""
"""The wait, the step and the evaluation last what they sleep, so that a busy machine changes none of their shares."""


def written(folder: Path, *, read_seconds: float, held_out: str, evaluated_every: int) -> Path:
    """The script, with items of the training that take so long, and its evaluation with items of a class."""
    script = folder / "train.py"
    text = TRAINING.replace("{read_seconds}", str(read_seconds)).replace("{held}", held_out)
    script.write_text(text.replace("{evaluated_every}", str(evaluated_every)))
    return script


@contextmanager
def training(
    folder: Path, script: Path, *arguments: str, steps: int = SETTLED_STEPS, forked: type[ForkedPython] | None = None
) -> Iterator[int]:
    """The script under `gpuwatch run`, once it has done its first steps; gives its pid.

    With `forked`, it comes from a Python that has made its imports already, and without the launcher.
    """
    environment = lonely_environment(folder)
    if forked:
        environment["PYTHONPATH"] = os.pathsep.join([str(SITE), environment["PYTHONPATH"]])
    launcher = [] if forked else [sys.executable, "-m", "gpuwatch", "run"]
    process = (forked or subprocess.Popen)(
        [*launcher, sys.executable, str(script), *arguments],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    warm = threading.Event()
    reader = threading.Thread(target=_read_on, args=(process, warm, steps))
    reader.start()
    try:
        assert warm.wait(PATIENCE_SECONDS), "the training never did its first steps"
        assert process.poll() is None, f"the training ended with {process.returncode}"
        yield process.pid
        assert process.poll() is None, f"the training ended with {process.returncode}"
    finally:
        kill_group(process)
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def _read_on(process: subprocess.Popen[str], warm: threading.Event, steps: int) -> None:
    """Keeps the pipe empty; says when the step has come, or that the training ended."""
    assert process.stdout is not None
    for number, _ in enumerate(process.stdout, 1):
        if number == steps:
            warm.set()
    warm.set()


def report(folder: Path, pid: int, *, seconds: int) -> dict[str, Any]:
    done = gpuwatch(folder, "report", "--attach", str(pid), "--duration", str(seconds), "--format", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def line_of(script: Path, text: str) -> int:
    return next(number for number, line in enumerate(script.read_text().splitlines(), 1) if text in line)


def findings(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["rule"]: finding for finding in document["findings"]}


def test_starved_training_is_given_the_line_to_change_and_the_patch_applies(tmp_path: Path) -> None:
    script = written(tmp_path, read_seconds=0.005, held_out="Images", evaluated_every=1_000_000)
    with training(tmp_path, script) as pid:
        document = report(tmp_path, pid, seconds=12)
    found = findings(document)
    assert {"data-starvation", "workers-zero"} <= set(found)
    built = line_of(script, "train_loader =")
    (run,) = document["runs"]
    assert (run["pid"], run["visibility"]) == (pid, "exact")
    assert [(loader["file"], loader["line"], loader["num_workers"]) for loader in run["loaders"]] == [
        (str(script), built, 0)
    ]
    for finding in (found["data-starvation"], found["workers-zero"]):
        fix = finding["fix"]
        assert (finding["run"], fix["file"], fix["line"]) == (run["id"], str(script), built)
        # A worker that sleeps needs little CPU, but no advice goes beyond ten workers for each core.
        assert 1 <= fix["value"] <= 10 * len(os.sched_getaffinity(0))
        assert finding["gain"]["low"] > 1.1
    assert document["verdict"][0]["rule"] == "data-starvation"

    fix = found["workers-zero"]["fix"]
    subprocess.run(["git", "apply", "-"], input=fix["diff"], cwd=tmp_path, text=True, check=True)
    changed, _ = [
        node
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "DataLoader"
    ]
    keywords = {keyword.arg: ast.literal_eval(keyword.value) for keyword in changed.keywords if keyword.arg}
    assert keywords == {"batch_size": 8, "num_workers": fix["value"], "persistent_workers": True}
    assert changed.lineno == built


def test_fast_dataset_yields_no_warning(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    shutil.copy(SLOW_DATASET, script)
    with training(tmp_path, script, "--kind", "fast", "--log", "/dev/stdout") as pid:
        document = report(tmp_path, pid, seconds=12)
    assert document["runs"][0]["steps"] >= SETTLED_STEPS
    assert document["verdict"][0]["judged"]
    assert [finding for finding in document["findings"] if finding["severity"] in ("critical", "warning")] == []


def test_slow_validation_is_not_blamed_on_the_training_loader(tmp_path: Path) -> None:
    """Once with an own dataset class, once with that of the training; both are watched at the same time."""
    scripts = []
    for held_out in ("Held", "Images"):
        folder = tmp_path / held_out
        folder.mkdir()
        scripts.append(written(folder, read_seconds=0.0, held_out=held_out, evaluated_every=25))
    with ExitStack() as trainings, ThreadPoolExecutor() as pool:
        pids = [trainings.enter_context(training(each.parent, each, steps=60, forked=ForkedPython)) for each in scripts]
        documents = list(pool.map(lambda script, pid: report(script.parent, pid, seconds=20), scripts, pids))
    for script, document in zip(scripts, documents, strict=True):
        (run,) = document["runs"]
        trains, evaluates = line_of(script, "train_loader ="), line_of(script, "eval_loader =")
        assert {loader["line"]: loader["role"] for loader in run["loaders"]} == {trains: "train", evaluates: "eval"}
        assert run["phases"]["eval"]["count"] >= 2
        found = findings(document)
        assert not LOADING_RULES & set(found)
        assert trains not in {(finding["fix"] or {}).get("line") for finding in document["findings"]}
        assert found["eval-stall"]["fix"]["line"] == evaluates
