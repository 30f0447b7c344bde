"""`gpuwatch run` and the ways a training is started behind it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hook_listener import Listener, listening
from hook_programs import PATIENCE_SECONDS, PREAMBLE, SITE, environment, rendezvous

LAUNCH = [sys.executable, "-c", "import sys; from gpuwatch.cli.run import run; run(sys.argv[1:])"]

TRAINING = (
    PREAMBLE
    + """
import os, sys
for batch in DataLoader(data, batch_size=16):
    train_on(batch)
print(os.getpid(), sys.argv[1:], sys.stdin.read())
assert not [name for name in sys.modules if name.partition(".")[0] == "gpuwatch"]
sys.exit(5)
"""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rendezvous(tmp_path)


def launched(folder: Path, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """What `gpuwatch run` with that command line gave."""
    return subprocess.run(
        [*LAUNCH, *command],
        env=environment(folder, hooked=False, **extra),
        cwd=folder.parent,
        input="typed",
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def heard_while(folder: Path, *command: str, **extra: str) -> tuple[Listener, subprocess.CompletedProcess[str]]:
    with listening(folder) as listener:
        result = launched(folder, *command, **extra)
        listener.until_all_closed()
    return listener, result


def test_the_command_takes_the_launchers_place(folder: Path) -> None:
    (folder.parent / "train.py").write_text(TRAINING)
    with (
        listening(folder) as listener,
        subprocess.Popen(
            [*LAUNCH, "--", sys.executable, "train.py", "--epochs", "3"],
            env=environment(folder, hooked=False),
            cwd=folder.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        stdout, stderr = process.communicate("typed", timeout=PATIENCE_SECONDS)
        listener.until_all_closed()
    assert (process.returncode, stderr) == (5, "")
    assert stdout == f"{process.pid} ['--epochs', '3'] typed\n"
    assert listener.trainers[0].facts["pid"] == process.pid


def test_a_module_behind_a_shell_script_is_hooked(folder: Path) -> None:
    package = folder.parent / "mytraining"
    package.mkdir()
    (package / "__main__.py").write_text(TRAINING)
    script = folder.parent / "train.sh"
    script.write_text(f"#!/bin/sh\n{sys.executable} -m mytraining\n")
    script.chmod(0o755)
    listener, result = heard_while(folder, "./train.sh")
    assert (result.returncode, result.stderr) == (5, "")
    (trainer,) = listener.trainers
    assert len(trainer.of("OPTIMIZER")) == 2
    assert trainer.facts["loaders"][0]["file"] == str(package / "__main__.py")


def test_both_ranks_of_torchrun_are_hooked_and_share_a_group(folder: Path) -> None:
    source = (
        PREAMBLE
        + """
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(net)
for batch in DataLoader(data, batch_size=16):
    train_on(batch)
del net
dist.barrier()  # without it one exit in four aborts in gloo's threads (torch 2.13), with and without the hook
dist.destroy_process_group()
"""
    )
    (folder.parent / "train.py").write_text(source)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    listener, result = heard_while(folder, *torchrun, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    first, second = sorted((peer.facts for peer in listener.trainers), key=lambda facts: facts["rank"])
    assert [first["rank"], second["rank"]] == [first["local_rank"], second["local_rank"]] == [0, 1]
    assert first["world_size"] == second["local_world_size"] == 2
    assert first["group"] == second["group"] is not None
    assert all(len(peer.of("OPTIMIZER")) == 2 for peer in listener.trainers)


def test_spawned_ranks_that_meet_in_a_file_share_a_group_and_the_name_of_their_script(folder: Path) -> None:
    indented = "\n".join(f"    {line}" for line in PREAMBLE.splitlines())
    (folder.parent / "ranks.py").write_text(
        f"""
import sys
import torch.distributed as dist
import torch.multiprocessing

def train(rank, meeting):
{indented}
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(net)
    for batch in DataLoader(data, batch_size=16):
        train_on(batch)
    del net
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (sys.argv[1],), nprocs=2)
"""
    )
    command = [sys.executable, "ranks.py", str(folder.parent / "meeting")]
    listener, result = heard_while(folder, *command, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    first, second = (peer.facts for peer in listener.trainers if peer.of("OPTIMIZER"))
    assert sorted((first["rank"], second["rank"])) == [0, 1]
    assert first["group"] == second["group"] is not None
    assert [facts["command"][1:] for facts in (first, second)] == [command[1:]] * 2


def test_the_sitecustomize_that_ours_shadows_still_runs(folder: Path) -> None:
    shadowed = folder.parent / "site"
    shadowed.mkdir()
    (shadowed / "sitecustomize.py").write_text("import sys\nsys.shadowed = __name__, __file__\n")
    source = "import sys; print(sys.shadowed, sys.modules['sitecustomize'].__file__, '_gpuwatch_hook' in sys.modules)"
    path = f"{shadowed}:{environment(folder, hooked=False)['PYTHONPATH']}"
    result = launched(folder, sys.executable, "-c", source, PYTHONPATH=path)
    file = str(shadowed / "sitecustomize.py")
    assert result.stdout == f"{('sitecustomize', file)} {file} True\n"
    (shadowed / "sitecustomize.py").write_text("raise RuntimeError('a broken site')\n")
    broken = launched(folder, sys.executable, "-c", "pass", PYTHONPATH=path)
    plain = subprocess.run(
        [sys.executable, "-c", "pass"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a broken site" in plain.stderr
    assert broken.stderr == plain.stderr * 2, "once for the launcher itself, once for its command"


OF_ITSELF = [
    f"/proc/self/{name}" for name in ("status", "limits", "oom_score_adj", "cmdline", "cgroup", "stat", "environ")
]
INHERITED = ("Sig[BIC]..:", "Umask", "NoNewPrivs", "Seccomp:", "Cpus_allowed:", "CapInh", "Groups", "Max ")


def told(command: list[str], shell: str, variables: dict[str, str], folder: Path) -> list[str]:
    """What a command that a shell starts tells of itself: the lines that are the same in every process like it."""
    result = subprocess.run(
        ["/bin/sh", "-c", f"{shell}{shlex.join(command)}; exit $?"],
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    if "cat" not in command:
        return result.stdout.splitlines()
    *lines, process, environ = result.stdout.splitlines()
    words, _, numbers = process.rpartition(")")
    priorities = numbers.split()[15:17]
    kept = [line for line in lines if re.match("|".join(INHERITED), line)]
    assert len(kept) > 20, lines
    return [*kept, words.rpartition("\0")[0], *priorities, *sorted(environ.split("\0"))]


@pytest.mark.parametrize("shell", ["", "trap '' PIPE XFSZ HUP; umask 027; ulimit -n 99; exec 7</dev/null; "])
@pytest.mark.parametrize("settings", [{}, {"LC_CTYPE": "C"}, {"LC_ALL": "C"}, {"LC_CTYPE": "C.UTF-8", "LANG": "C"}])
def test_a_process_behind_the_launcher_inherits_what_it_would_without(
    folder: Path, shell: str, settings: dict[str, str]
) -> None:
    paths = environment(folder, hooked=False)["PYTHONPATH"]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, **settings}
    for command in (["cat", *OF_ITSELF], ["ls", "/proc/self/fd"], ["/bin/pwd"]):
        plain = told(command, shell, variables, folder)
        hooked = told([sys.executable, "-m", "gpuwatch", "run", *command], shell, variables, folder)
        assert hooked == [line.replace(f"PYTHONPATH={paths}", f"PYTHONPATH={SITE}:{paths}") for line in plain]
        assert hooked != plain or command[0] != "cat"


def test_a_command_whose_reader_goes_is_ended_by_the_signal(folder: Path) -> None:
    launcher = shlex.join([*LAUNCH, "yes"])
    for launched_by in (launcher, "yes"):
        pipeline = f"set -o pipefail; {launched_by} | head -n 1"
        result = subprocess.run(
            ["bash", "-c", pipeline],
            env=environment(folder, hooked=False),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert (result.returncode, result.stdout, result.stderr) == (128 + signal.SIGPIPE, "y\n", "")


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ([], 2, "no command was given: gpuwatch run python train.py"),
        (["--epochs", "3"], 2, "--epochs is not an option of `gpuwatch run`: give the command first, as in"),
        (["pyhton"], 127, "pyhton is not on PATH; check its spelling, or activate the environment it is in"),
        (["./no.sh"], 127, "./no.sh does not exist; check the path"),
        (["notes.py"], 127, "notes.py is a script, not a command; start it with its interpreter: "),
        (["./notes.py"], 126, "./notes.py is not executable; start it with its interpreter: gpuwatch run python "),
        (
            ["./garbled"],
            126,
            "./garbled cannot be started (Exec format error); give a program, or put the interpreter before a script",
        ),
    ],
)
def test_a_command_that_cannot_be_started_is_one_sentence(
    folder: Path, command: list[str], code: int, sentence: str
) -> None:
    (folder.parent / "notes.py").touch(mode=0o644)
    (folder.parent / "garbled").write_text("no program\n")
    (folder.parent / "garbled").chmod(0o755)
    result = launched(folder, *command)
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.startswith(f"gpuwatch run: {sentence}")
    assert result.stderr.count("\n") == 1


def test_help_is_data_and_flags_that_lose_the_hook_are_reported(folder: Path) -> None:
    usage = launched(folder, "--help")
    assert (usage.returncode, usage.stderr) == (0, "")
    assert usage.stdout.startswith("usage: gpuwatch run")
    isolated = launched(folder, sys.executable, "-I", "-c", "print('ran')")
    assert (isolated.returncode, isolated.stdout) == (0, "ran\n")
    assert "-I ignores PYTHONPATH" in isolated.stderr
