"""Pythons that are hard to find in their process: other namespaces, deleted, stripped, started by the loader."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.reader.attach import attach
from gpuwatch.reader.memory import Memory
from gpuwatch.reader.program import Image, file_address, mapped_image
from tests.integration.interpreters import TARGETS, Python, code, each, running, standing, until_standing

HERE = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
STANDING = "def stand():\n    print('ready', flush=True)\n    import sys; sys.stdin.read()\nstand()"


def functions(pid: int) -> list[str]:
    until_standing(pid)
    interpreter = attach(pid)
    try:
        stack = interpreter.main_stack()
        assert stack is not None
        return [frame.code.name for frame in stack.frames]
    finally:
        interpreter.close()


def copied_python(folder: Path) -> tuple[Path, dict[str, str]]:
    """A copy of this Python's program and of the library it is in, if it is in one, and the environment to run it."""
    program = Path(shutil.copy(HERE, folder / "python"))
    environment = {**os.environ, "PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": str(folder)}
    for library in Path(sys.base_prefix, "lib").glob(f"libpython3.{sys.version_info[1]}.so*"):
        shutil.copy(library, folder / library.name, follow_symlinks=True)
    return program, environment


def python_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(("python", "libpython"))]


def only_from(folder: Path, pid: int) -> None:
    """Skips where the program names its library by a fixed path, so that the copy is not what runs."""
    paths = {mapping.path for mapping in Memory(pid).maps() if "libpython" in mapping.path}
    if not all(path.startswith(str(folder)) for path in paths):
        pytest.skip("this Python finds its library by a fixed path")


def test_stripped_python_is_read_by_the_symbols_it_exports(tmp_path: Path) -> None:
    if shutil.which("strip") is None:
        pytest.skip("no strip (binutils) here")
    program, environment = copied_python(tmp_path)
    for path in python_files(tmp_path):
        subprocess.run(["strip", "--strip-all", str(path)], check=True)
    with code(Python(0, (str(program),)), STANDING, env=environment) as process:
        only_from(tmp_path, process.pid)
        assert functions(process.pid) == ["stand", "<module>"]


def test_python_without_section_headers_is_read(tmp_path: Path) -> None:
    program, environment = copied_python(tmp_path)
    for path in python_files(tmp_path):
        content = bytearray(path.read_bytes())
        content[0x28:0x30] = bytes(8)  # e_shoff
        content[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
        path.write_bytes(content)
    with code(Python(0, (str(program),)), STANDING, env=environment) as process:
        only_from(tmp_path, process.pid)
        assert functions(process.pid) == ["stand", "<module>"]


def test_python_whose_files_were_deleted_is_read(tmp_path: Path) -> None:
    program, environment = copied_python(tmp_path)
    with code(Python(0, (str(program),)), STANDING, env=environment) as process:
        for path in python_files(tmp_path):
            path.unlink()
        assert functions(process.pid) == ["stand", "<module>"]


def test_python_started_through_the_loader_is_read() -> None:
    loaders = [*Path("/lib64").glob("ld-linux-*.so.*"), *Path("/lib").glob("ld-linux-*.so.*")]
    if not loaders:
        pytest.skip("no glibc loader here")
    with code(Python(0, (str(loaders[0]), str(HERE))), STANDING) as process:
        assert "ld-" in str(Path(f"/proc/{process.pid}/exe").readlink())
        assert functions(process.pid) == ["stand", "<module>"]


def test_python_of_another_name_is_read(tmp_path: Path) -> None:
    program = Path(shutil.copy(HERE, tmp_path / "trainer"))
    environment = {**os.environ, "PYTHONHOME": sys.base_prefix}
    with code(Python(0, (str(program),)), STANDING, env=environment) as process:
        assert functions(process.pid) == ["stand", "<module>"]


@pytest.mark.parametrize("python", each())
def test_module_run_by_name_is_read(python: Python) -> None:
    folder = Path(python.placed(TARGETS / "standing.py")).parent
    environment = {**os.environ, "PYTHONPATH": str(folder)}  # a working directory would not be kept by chroot
    with running([*python.command, "-m", "standing", "nested"], env=environment) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert functions(process.pid)[1:] == [name for _, name, _ in told["main"]]


@pytest.mark.parametrize("python", each())
def test_process_in_another_pid_namespace_is_read(python: Python) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare (util-linux)")
    inside = Python(python.minor, ("unshare", "--pid", "--fork", "--kill-child", *python.command), python.root)
    with standing(inside, "threads") as target:
        assert target.pid == 1
        children = Path(f"/proc/{target.process.pid}/task/{target.process.pid}/children").read_text()
        pid = int(children)
        until_standing(pid)
        interpreter = attach(pid)
        main, *others = interpreter.stacks()
        alone = interpreter.main_stack()
        interpreter.close()
    assert main.is_main
    assert alone == main
    assert [(frame.code.name, frame.line) for frame in main.frames[1:]] == [frame[1:] for frame in target.main]
    if python.minor >= 11:
        assert main.thread == 1
        assert {stack.thread for stack in others} == set(target.threads)


PROGRAM = """
#include <stdio.h>
#include <unistd.h>
__attribute__((section(".PyRuntime"))) char _PyRuntime[64] = "state";
int exported_value = 7;
int main(void) {
    printf("%p %p\\n", (void *)_PyRuntime, (void *)&exported_value);
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) < 0;
}
"""


@pytest.mark.parametrize("flags", [["-pie", "-fPIE"], ["-no-pie"]], ids=["pie", "no-pie"])
def test_symbols_that_only_the_file_has_are_found(tmp_path: Path, flags: list[str]) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "program"
    subprocess.run(["gcc", *flags, "-o", str(program), str(tmp_path / "program.c")], check=True)
    with running([str(program)]) as process:
        assert process.stdout is not None
        runtime, value = (int(text, 16) for text in process.stdout.readline().split())
        image = image_of(process.pid, program)
        assert image.exported("_PyRuntime") is None
        assert in_file(program, image, "_PyRuntime") == runtime
        assert in_file(program, image, "exported_value") == value
        assert in_file(program, image, "no_such_symbol") is None
        stripped = Path(shutil.copy(program, tmp_path / "stripped"))
        if shutil.which("strip") is not None:
            subprocess.run(["strip", str(stripped)], check=True)
            assert in_file(stripped, image_of_same(image, stripped), "_PyRuntime", ".PyRuntime") == runtime
        # Another program's file says nothing about this one.
        assert in_file(HERE, image, "_PyRuntime", ".PyRuntime") is None


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_exported_symbols_are_found_in_both_kinds_of_table(tmp_path: Path, style: str) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "program"
    command = ["gcc", "-rdynamic", f"-Wl,--hash-style={style}", "-o", str(program), str(tmp_path / "program.c")]
    subprocess.run(command, check=True)
    with running([str(program)]) as process:
        assert process.stdout is not None
        runtime, value = (int(text, 16) for text in process.stdout.readline().split())
        image = image_of(process.pid, program)
        assert image.exported("_PyRuntime") == runtime
        assert image.exported("exported_value") == value
        assert image.exported("no_such_symbol") is None
        assert image.needs("libc")


def image_of(pid: int, program: Path) -> Image:
    memory = Memory(pid)
    start = next(mapping.start for mapping in memory.maps() if mapping.path == str(program))
    return mapped_image(memory, start, str(program))


def image_of_same(image: Image, stripped: Path) -> Image:
    """As if the stripped program were what runs: strip moves nothing that is mapped."""
    return Image(
        image.memory, image.base, str(stripped), 64, image.machine, image.bias, stripped.read_bytes()[:64], True
    )


def in_file(path: Path, image: Image, name: str, section: str | None = None) -> int | None:
    with path.open("rb") as file:
        return file_address(file, image, name, section)
