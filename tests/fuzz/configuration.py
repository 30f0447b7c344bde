"""Fuzz target: config files (TOML), and the YAML, JSON, Python and command lines that edits are made from.

The first byte says what the rest is; the second picks a variant, so that each mutation stays what it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpuwatch.config import ConfigError, load, parsed
from gpuwatch.diagnosis.finding import (
    AutocastEdit,
    CallEdit,
    Edit,
    IntervalEdit,
    LoopEdit,
    ModelEdit,
    SettingsEdit,
    SetupEdit,
    TransferEdit,
    WorkerInitEdit,
)
from gpuwatch.edits.editor import combined_patch, edit_diff
from gpuwatch.edits.source import UnreadableSourceError
from gpuwatch.edits.workspace import Origin
from gpuwatch.procfs import parse_stat, shown, status_fields
from gpuwatch.sources.stacks.source_text import SourceFile
from gpuwatch.text import code_block, code_span, json_text, markdown, printable, terminal_text
from gpuwatch.timeline.runs import title_of

_MOST_BYTES = 64 << 10
_FOLDER = Path("/home/user")
_FROM_CONFIG = b"""\
cfg = load(args.config)
loader = DataLoader(data, num_workers=cfg["workers"])
"""
_SCRIPT = b"""\
import torch
from torch.utils.data import DataLoader

def main(args):
    kwargs = {"num_workers": 2, "pin_memory": False}
    loader = DataLoader(data, batch_size=32, **kwargs)
    model = torch.nn.Linear(2, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for step, (x, y) in enumerate(loader):
            x = x.to("cuda")
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(loss.item())
        validate(model)
main(args)
"""
_TOML = b"""\
[tool.gpuwatch]
interval = 2
select = ["data", "workers-"]
ignore = ["amp-off"]
fail-on = "critical"
[tool.gpuwatch.rules.data-starvation]
fire-share = 0.2
"""
_YAML = b"""\
base: &base {workers: 2, lr: 1e-3}
train:
  <<: *base
  workers: 4  # enough
  names: [a, "b", 'c']
"""
_JSON = b'{"data": {"workers": 2, "lr": 1e-3, "names": ["a", null, true]}}'
_COMMAND = b"python\0-u\0train.py\0--config=base.yaml\0--workers\0002\0-j4\0data.workers=8"
_STATUS = b"Name:\tpython\nUid:\t1\t1\t1\t1\nNSpid:\t7\t1\n7 (a) b) S 1 " + b"0 " * 40


def seeds() -> list[bytes]:
    """One of each kind and variant."""
    scripts = [b"P" + bytes([variant]) + _SCRIPT for variant in range(len(_edits(6)))]
    whole = [b"T\0" + _TOML, b"Y\0" + _YAML, b"J\0" + _JSON, b"C\0" + _COMMAND, b"S\0" + _STATUS]
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    bomb = b"Y\0a0: &a0 [1]\n" + levels.encode() + b"workers: 2\n"
    deep = [
        b"P\0loader = DataLoader(data, " + middle + b")\nfor x in loader:\n    x.cuda()\n"
        for middle in (
            b"a." * 5000 + b"a",
            b"1+" * 5000 + b"1",
            b"-" * 5000 + b"1",
            b"(" * 190 + b")" * 190,
            b"f()" + b"()" * 5000,
        )
    ]
    deep.append(b"P\0if a:\n  DataLoader(b)\n" + b"elif a:\n  DataLoader(b)\n" * 3000)
    deep.append(b"P\0" + b"".join(b" " * n + b"if a:\n" for n in range(99)) + b" " * 99 + b"DataLoader(a)\n")
    return [
        *scripts,
        *whole,
        *deep,
        bomb,
        b"T\0[" + b"a." * 200 + b"a]\nb=1\n",
        b"Y\0" + b"[" * 300,
        b"J\0" + b"[" * 3000,
    ]


def run(data: bytes) -> None:
    """Feeds one input to what it is meant for; whatever this raises is a fault."""
    kind, variant, content = data[:1], data[1:2], data[2 : 2 + _MOST_BYTES]
    feed = _FEEDS.get(kind)
    if feed is not None:
        feed(content, variant[0] if variant else 0)


def _toml(content: bytes, _: int) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(content)
        file.flush()
        try:
            load(config=file.name)
        except ConfigError as error:
            assert "\n" not in str(error)
        with suppress(ConfigError):
            parsed(content, Path(file.name))


def _config_file(suffix: str) -> Callable[[bytes, int], None]:
    def feed(content: bytes, _: int) -> None:
        edit = CallEdit("DataLoader", "train.py", 2, {"num_workers": "6"}, {"num_workers": "2"})
        _make(
            edit,
            {"train.py": _FROM_CONFIG, f"base.{suffix}": content},
            ("python", "train.py", f"--config=base.{suffix}"),
        )

    return feed


def _script(content: bytes, variant: int) -> None:
    lines = content.count(b"\n") + 1
    source = SourceFile(content.decode("utf-8", "replace"))
    for number in range(1, min(lines, 50)):
        source.request(number)
        source.loops(number)
        source.line(number)
    edits = _edits(1 + (variant >> 4) * 3 % lines)
    _make(edits[variant % len(edits)], {"train.py": content}, ("python", "train.py"))


def _command(content: bytes, _: int) -> None:
    command = tuple(shown(word) for word in content.split(b"\0"))
    title_of(command)
    edit = CallEdit("DataLoader", "train.py", 2, {"num_workers": "6"}, {"num_workers": "2"})
    source = b"args = parser.parse_args()\nloader = DataLoader(data, num_workers=args.workers)\n"
    _make(edit, {"train.py": source, "base.yaml": _YAML, "base.json": _JSON}, command)
    text = content.decode("utf-8", "surrogateescape")
    assert printable(text).isprintable() and json_text([text]).isascii() and code_span(text).isprintable()
    for safe in (terminal_text(text), code_block(text), markdown(text)):
        assert safe.replace("\n", "").replace("\t", "").isprintable()


def _status(content: bytes, _: int) -> None:
    status_fields(content)
    parse_stat(content)


def _edits(line: int) -> list[Edit]:
    file = "train.py"
    return [
        CallEdit("DataLoader", file, line, {"num_workers": "6", "pin_memory": "True"}, {"num_workers": "2"}),
        CallEdit("DataLoader", file, 6, {"num_workers": "6", "pin_memory": "True"}, {"num_workers": "2"}),
        CallEdit("Adam", file, 8, {"fused": "True"}),
        LoopEdit("DataLoader", file, 10, {"num_workers": "6"}),
        SettingsEdit("TrainingArguments", file, {"num_workers": "6"}),
        TransferEdit(file, 11),
        TransferEdit(file, line),
        SetupEdit(file, 'torch.set_float32_matmul_precision("high")'),
        ModelEdit(file, 8, "{model} = {model}.to(memory_format=torch.channels_last)"),
        AutocastEdit(file, 13),
        AutocastEdit(file, line),
        IntervalEdit(file, 16, 50),
        IntervalEdit(file, 17, 5, "epoch", what="evaluate"),
        IntervalEdit(file, line, 50, times=2, present=(10,)),
        WorkerInitEdit(file, 6, "one_thread_per_worker", ("cv2.setNumThreads(0)",)),
    ]


def _make(edit: Edit, files: dict[str, bytes], command: tuple[str, ...]) -> None:
    def read(path: Path) -> bytes:
        try:
            return files[path.name]
        except KeyError:
            raise UnreadableSourceError(f"{path} cannot be read") from None

    diff = edit_diff(edit, read, _FOLDER, command)
    assert diff.text or diff.reason
    patch = combined_patch([(edit, Origin(read, _FOLDER, command))])
    assert bool(patch.data) == bool(diff.text)


_FEEDS: dict[bytes, Callable[[bytes, int], None]] = {
    b"T": _toml,
    b"Y": _config_file("yaml"),
    b"J": _config_file("json"),
    b"P": _script,
    b"C": _command,
    b"S": _status,
}
