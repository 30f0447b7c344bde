"""Each kind of edit: what it makes of a source, that it is made only once, and when it is text only."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

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
from tests.unit.edit_sources import FILE, changed, diff_of, line_of, refused

PRECISION = 'torch.set_float32_matmul_precision("high")'
COMPILE = "{model}.compile()"
CHANNELS = "{model} = {model}.to(memory_format=torch.channels_last)"

TRAIN = dedent("""\
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.MSELoss()
    loader = DataLoader(dataset, num_workers=4)
    for epoch in range(10):
        for step, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            out = model(x)
            # the loss of the paper
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            print(loss.item())
        validate(model, loader)
    """)


def transfer(source: str, text: str) -> TransferEdit:
    return TransferEdit(FILE, line_of(source, text))


def autocast(source: str, text: str = ".backward(") -> AutocastEdit:
    return AutocastEdit(FILE, line_of(source, text))


def every_step(source: str, text: str = ".item()", every: int = 50) -> IntervalEdit:
    return IntervalEdit(FILE, line_of(source, text), every)


def every_epoch(source: str, text: str, every: int = 5) -> IntervalEdit:
    return IntervalEdit(FILE, line_of(source, text), every, "epoch")


def test_copies_of_a_statement_do_not_block() -> None:
    assert changed(transfer(TRAIN, "x.to("), TRAIN) == [
        "-        x, y = x.to(device), y.to(device)",
        "+        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)",
    ]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("b = {k: v.to(d) for k, v in b.items()}\n", "+b = {k: v.to(d, non_blocking=True) for k, v in b.items()}"),
        ("x = x.cuda()\n", "+x = x.cuda(non_blocking=True)"),
        ("x = load(y.cuda()).to(0)\n", "+x = load(y.cuda(non_blocking=True)).to(0, non_blocking=True)"),
        (
            "x = x.float().to(d, torch.float16)  # half\n",
            "+x = x.float().to(d, torch.float16, non_blocking=True)  # half",
        ),
        ("for x in loader: x = x.to(device=d)\n", "+for x in loader: x = x.to(device=d, non_blocking=True)"),
    ],
)
def test_copies_are_found_where_they_stand(source: str, line: str) -> None:
    assert changed(TransferEdit(FILE, 1), source)[1:] == [line]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("x = x.to(torch.float16)\n", "no .to(device)"),
        ("m = m.to(memory_format=torch.channels_last)\n", "no .to(device)"),
        ("x = x.to(d, non_blocking=False)\n", "already"),
        ("x = x.cuda(0, True)\n", "already"),
        ("x = x.to(d, **options)\n", "from **"),
        ("x = x.to(y.dtype)\n", "no .to(device)"),
        ("x = x.to('cpu')\n", "no .to(device)"),
        ("x = x.to(torch.device('cpu'))\n", "no .to(device)"),
        ("x = 1\n", "no .to(device)"),
        ("x = x.to(d); y = y.to(d)\n", "several statements"),
        ("print(f'{x.to(d)}')\n", "inside of an f-string"),
    ],
)
def test_a_copy_that_needs_no_change_is_reported(source: str, why: str) -> None:
    assert why in refused(TransferEdit(FILE, 1), source)


def test_a_setup_statement_stands_behind_the_imports() -> None:
    text = diff_of(SetupEdit(FILE, PRECISION), TRAIN).text or ""
    assert f" from torch.utils.data import DataLoader\n+\n+{PRECISION}\n \n model" in text


def test_a_setup_statement_brings_its_import_and_changes_one_that_is_there() -> None:
    assert changed(SetupEdit(FILE, PRECISION), "from torch import nn\n") == ["+import torch", "+", f"+{PRECISION}"]
    assert changed(SetupEdit(FILE, PRECISION), "import torch") == [
        "-import torch",
        "+import torch",
        "+",
        f"+{PRECISION}",
    ]
    there = 'import torch\ndef main():\n    torch.set_float32_matmul_precision("highest")\n'
    assert changed(SetupEdit(FILE, PRECISION), there)[1] == f"+    {PRECISION}"
    assert "no imports" in refused(SetupEdit(FILE, PRECISION), "x = 1\n")
    assert "in lines 1, 2" in refused(SetupEdit(FILE, "torch.f(1)"), "torch.f(2)\ntorch.f(3)\n")


def test_an_attribute_is_set_once() -> None:
    edit = SetupEdit(FILE, "torch.backends.cudnn.benchmark = True")
    source = "import torch\ntorch.backends.cudnn.benchmark = False\n"
    assert changed(edit, source) == [
        "-torch.backends.cudnn.benchmark = False",
        "+torch.backends.cudnn.benchmark = True",
    ]


def test_a_model_is_changed_before_its_optimizer_is_built() -> None:
    edit = ModelEdit(FILE, line_of(TRAIN, "optim.SGD"), COMPILE)
    assert changed(edit, TRAIN) == ["+model.compile()"]
    edit = ModelEdit(FILE, line_of(TRAIN, "optim.SGD"), CHANNELS)
    assert changed(edit, TRAIN) == ["+model = model.to(memory_format=torch.channels_last)"]
    edit = ModelEdit(FILE, line_of(TRAIN, "nn.Linear"), "{model} = torch.compile({model})")
    assert changed(edit, TRAIN) == ["+model = torch.compile(model)"]


@pytest.mark.parametrize(
    ("source", "statement", "why"),
    [
        ("opt = SGD(self.parameters())\n", COMPILE, "no single model"),
        ("opt = SGD([*a.parameters(), *b.parameters()])\n", COMPILE, "no single model"),
        ("def f(model):\n    return 1\nx = 3\n", COMPILE, "neither makes a model"),
        ("def f(model):\n    opt = SGD(model.parameters())\n", CHANNELS, "made outside"),
        ("model = net()\ndef f():\n    opt = SGD(model.parameters())\n", CHANNELS, "made outside"),
        ("model = torch.compile(net)\nopt = SGD(model.parameters())\n", COMPILE, "already"),
    ],
)
def test_a_model_that_cannot_be_named_is_reported(source: str, statement: str, why: str) -> None:
    line = len(source.rstrip("\n").split("\n"))
    assert why in refused(ModelEdit(FILE, line, statement), source)


def test_another_compile_is_not_the_models() -> None:
    source = "import re, torch\nword = re.compile('x')\nopt = SGD(model.parameters())\n"
    assert changed(ModelEdit(FILE, 3, COMPILE), source) == ["+model.compile()"]


def test_autocast_holds_forward_and_loss_and_leaves_the_backward_outside() -> None:
    assert changed(autocast(TRAIN), TRAIN) == [
        "-        out = model(x)",
        "-        # the loss of the paper",
        "-        loss = criterion(out, y)",
        '+        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):',
        "+            out = model(x)",
        "+            # the loss of the paper",
        "+            loss = criterion(out, y)",
    ]


def test_autocast_finds_the_loss_through_conditions_and_leaves_strings_as_they_are() -> None:
    source = dedent('''\
        import torch
        for batch in loader:
        \tmodel.train()
        \tloss = model(**batch,
        note="""a
        b""").loss
        \tloss = loss / 4
        \tif ok:
        \t\tloss.backward()
        ''')
    assert changed(autocast(source), source) == [
        "-\tloss = model(**batch,",
        '-note="""a',
        '+\twith torch.autocast(device_type="cuda", dtype=torch.bfloat16):',
        "+\t\tloss = model(**batch,",
        '+\tnote="""a',
        "-\tloss = loss / 4",
        "+\t\tloss = loss / 4",
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("loss.backward()", "not made in the same block"),
        ("loss = f(x)\nloss.backward()", "call of the model is not"),
        ("loss = model(x)\nscaler = GradScaler()\nscaler.scale(loss).backward()", "already scales"),
        ("loss = model(x)\naccelerator.backward(loss)", "Accelerator(...)"),
        ("loss = model(x)\nself.manual_backward(loss)", "Trainer(...)"),
        ("with torch.autocast('cuda'):\n    loss = model(x)\nloss.backward()", "already has torch.autocast"),
        ("a = model(x)\na.sum().backward\noptimizer.step()\nloss = a + 1\nloss.backward()", "trains between"),
        ("loss = model(x)\nif loss > 9: return\nloss = loss + 1\nloss.backward()", "leaves the way"),
        ("x = lambda: loss.backward()", "is not a statement of one backward"),
    ],
)
def test_autocast_that_is_not_plain_is_reported(body: str, why: str) -> None:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    source = f"import torch\nmodel.train()\ndef step(x):\n{lines}"
    assert why in refused(autocast(source, ".backward()") if ".backward()" in body else AutocastEdit(FILE, 5), source)


def test_logging_is_put_under_an_interval() -> None:
    assert changed(every_step(TRAIN), TRAIN) == [
        "-        print(loss.item())",
        "+        if step % 50 == 0:",
        "+            print(loss.item())",
    ]


def test_a_counter_of_the_loops_own_serves_and_a_missing_one_is_reported() -> None:
    source = "n = 0\nwhile True:\n    wandb.log({'loss': loss.item()}, step=n)\n    n += 1\n"
    assert "+    if n % 50 == 0:" in changed(every_step(source), source)
    assert "no counter" in refused(every_step(source), source.replace("n += 1", "n += 2"))


def test_evaluation_is_put_at_the_end_of_every_so_many_epochs() -> None:
    assert changed(every_epoch(TRAIN, "validate("), TRAIN) == [
        "-    validate(model, loader)",
        "+    if (epoch + 1) % 5 == 0 or epoch + 1 == 10:",
        "+        validate(model, loader)",
    ]


def test_a_checkpoint_is_put_under_an_interval_where_its_function_is_called() -> None:
    source = "def save():\n    torch.save(model, path)\nfor epoch in range(9):\n    train()\n    save()\n"
    assert changed(every_epoch(source, "torch.save"), source)[1:] == [
        "+    if (epoch + 1) % 5 == 0 or epoch + 1 == 9:",
        "+        save()",
    ]


@pytest.mark.parametrize(
    ("loop", "condition"),
    [
        ("range(1, args.epochs + 1)", "epoch % 5 == 0 or epoch + 1 == (args.epochs + 1)"),
        ("range(start, EPOCHS)", "(epoch + 1) % 5 == 0 or epoch + 1 == EPOCHS"),
        ("tqdm(range(9))", "(epoch + 1) % 5 == 0"),
        ("range(next(numbers))", "(epoch + 1) % 5 == 0"),
    ],
)
def test_the_last_epoch_keeps_its_evaluation_where_it_is_known(loop: str, condition: str) -> None:
    source = f"for epoch in {loop}:\n    train()\n    torch.save(model)\n"
    assert changed(every_epoch(source, "torch.save"), source)[1] == f"+    if {condition}:"


def test_an_evaluation_is_left_out_as_a_whole_and_training_never() -> None:
    source = (
        "for epoch in range(9):\n    for x in loader:\n        train(x)\n    with torch.no_grad():\n"
        "        for x in held_out:\n            net(x)\n"
    )
    assert changed(every_epoch(source, "net(x)"), source)[3] == "+    if (epoch + 1) % 5 == 0 or epoch + 1 == 9:"
    assert "in the loop over batches" in refused(every_epoch(source, "train(x)"), source)


EVALUATING = dedent("""\
    best = 0
    for epoch in range(9):
        for x in loader:
            out = net(x)
            step(out)
        with torch.no_grad():
            correct = 0
            for x in held_out:
                out = net(x)
                if out is None:
                    continue
                correct += out
            print(correct)
    """)


@pytest.mark.parametrize(
    ("behind", "why"),
    [
        ("", None),
        ("    out = 1\n    print(out)\n", None),
        ("    print(out)\n", "uses out"),
        ("    best = max(best, correct)\n", "uses correct"),
        ("    for correct in (1, 2):\n        print(correct)\n", None),
        ("    if a:\n        correct = 1\n    print(correct)\n", "uses correct"),
        ("print(correct)\n", "uses correct"),
    ],
)
def test_names_that_are_set_again_before_they_are_read_do_not_count(behind: str, why: str | None) -> None:
    source = EVALUATING + behind
    edit = every_epoch(source, "with torch.no_grad")
    if why is None:
        assert "+    if (epoch + 1) % 5 == 0 or epoch + 1 == 9:" in changed(edit, source)
    else:
        assert why in refused(edit, source)


def test_a_name_that_the_next_pass_reads_first_counts() -> None:
    source = "for epoch in range(9):\n    use(best)\n    best = evaluate()\n"
    assert "uses best" in refused(every_epoch(source, "evaluate"), source)


def test_an_interval_that_is_there_is_raised_where_it_is_written() -> None:
    source = "for i, b in enumerate(l):\n    if i % 10 == 0:\n        print(loss.item())\n"
    assert changed(every_step(source), source) == ["-    if i % 10 == 0:", "+    if i % 50 == 0:"]
    source = f"EVERY = 10\n{source.replace('% 10', '% EVERY')}"
    assert changed(every_step(source), source) == ["-EVERY = 10", "+EVERY = 50"]
    assert "already" in refused(every_step(source, every=5), source.replace("EVERY", "10").replace("10 = 10", ""))


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("total += loss.item()", "used outside"),
        ("losses.append(loss.item())", "may do more than log"),
        ("value = loss.item(); print(value)", "several statements"),
        ("value = loss.item()\n    history.append(value)", "uses value"),
        ("self.value = loss.item()", "keeps its result"),
        ("if loss.item() > 3: break", "controls|more than log"),
        ("log = lambda: print(loss.item())\n    log()", "uses log"),
    ],
)
def test_what_is_needed_in_every_step_stays(statement: str, why: str) -> None:
    source = f"for i, b in enumerate(l):\n    {statement}\n"
    assert any(part in refused(every_step(source), source) for part in why.split("|"))


def test_outside_of_a_loop_there_is_nothing_to_count() -> None:
    assert "not in a loop" in refused(every_step("print(loss.item())\n"), "print(loss.item())\n")


def test_workers_get_a_function_of_their_own() -> None:
    source = TRAIN.replace("import torch\n", "import cv2\nimport torch\n", 1)
    edit = WorkerInitEdit(FILE, line_of(source, "DataLoader(d"), "no_threads", ("cv2.setNumThreads(0)",))
    assert [line for line in changed(edit, source) if line != "+"] == [
        "+def no_threads(worker_id):",
        "+    cv2.setNumThreads(0)",
        "-loader = DataLoader(dataset, num_workers=4)",
        "+loader = DataLoader(dataset, num_workers=4, worker_init_fn=no_threads)",
    ]
    there = source.replace("num_workers=4", "worker_init_fn=seed")
    assert "put cv2.setNumThreads(0) there" in refused(edit, there)


@pytest.mark.parametrize(
    ("source", "line", "after"),
    [
        ("loader = DataLoader(x)\nfor b in loader:\n    pass\n", 2, "+loader = DataLoader(x, num_workers=6)"),
        (
            "def f(l):\n    for i, b in enumerate(tqdm(l)):\n        pass\nd = DataLoader(x)\nf(d)\n",
            2,
            "+d = DataLoader(x, num_workers=6)",
        ),
        (
            "l = DataLoader(x)\nit = iter(l)\nwhile 1:\n    try:\n        b = next(it)\n"
            "    except E:\n        it = iter(l)\n",
            5,
            "+l = DataLoader(x, num_workers=6)",
        ),
        (
            "class T:\n    def __init__(self, l):\n        self.l = l\n    def f(self):\n        for b in self.l:\n"
            "            pass\nT(DataLoader(x)).f()\n",
            5,
            "+T(DataLoader(x, num_workers=6)).f()",
        ),
        ("for b in DataLoader(x):\n    pass\n", 1, "+for b in DataLoader(x, num_workers=6):"),
    ],
)
def test_the_loader_of_a_loop_is_changed_where_it_is_made(source: str, line: int, after: str) -> None:
    assert changed(LoopEdit("DataLoader", FILE, line, {"num_workers": "6"}), source)[1] == after


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("from data import loader\nfor b in loader:\n    pass\n", "imported from data"),
        ("def f(l):\n    for b in l:\n        pass\n", "callers of f() give"),
        ("a = 1\nb = 2\n", "is not a loop over a loader"),
        ("l = make()\nfor b in l:\n    pass\n", "computed in line 1"),
    ],
)
def test_a_loop_over_something_from_elsewhere_is_reported(source: str, why: str) -> None:
    assert why in refused(LoopEdit("DataLoader", FILE, 2, {"num_workers": "6"}), source)


HUGGING_FACE = dedent("""\
    from transformers import Trainer, TrainingArguments
    args = TrainingArguments(output_dir="out", dataloader_num_workers=0)
    Trainer(model, args, train_dataset=data).train()
    """)


def test_settings_of_a_library_are_changed_in_its_only_call() -> None:
    edit = SettingsEdit("TrainingArguments", FILE, {"dataloader_num_workers": "6"}, {"dataloader_num_workers": "0"})
    assert changed(edit, HUGGING_FACE)[1] == '+args = TrainingArguments(output_dir="out", dataloader_num_workers=6)'
    subclass = HUGGING_FACE.replace("TrainingArguments", "Seq2SeqTrainingArguments")
    assert "dataloader_num_workers=6" in changed(edit, subclass)[1]
    started = SettingsEdit("TrainingArguments", None, edit.keywords)
    assert "dataloader_num_workers=6" in changed(started, HUGGING_FACE, ["python", "-u", "train.py"])[1]
    assert "not known" in refused(started, HUGGING_FACE, ["python", "-c", "pass"])
    assert "2 TrainingArguments" in refused(edit, HUGGING_FACE * 2)
    parsed = "p = HfArgumentParser((ModelArguments, TrainingArguments))\n"
    assert "start it with --dataloader_num_workers 6" in refused(edit, parsed)


@pytest.mark.parametrize(
    "edit",
    [
        CallEdit("SGD", FILE, line_of(TRAIN, "SGD("), {"fused": "True"}),
        transfer(TRAIN, "x.to("),
        SetupEdit(FILE, PRECISION),
        ModelEdit(FILE, line_of(TRAIN, "optim.SGD"), COMPILE),
        ModelEdit(FILE, line_of(TRAIN, "optim.SGD"), CHANNELS),
        autocast(TRAIN),
        every_step(TRAIN),
        every_epoch(TRAIN, "validate("),
        WorkerInitEdit(FILE, line_of(TRAIN, "DataLoader(d"), "seed", ("torch.manual_seed(worker_id)",)),
    ],
    ids=lambda edit: type(edit).__name__,
)
def test_made_once_it_is_not_made_again(edit: Edit) -> None:
    after = "".join(line[1:] for line in diff_lines(diff_of(edit, TRAIN).text or "", TRAIN) if not line.startswith("-"))
    ast.parse(after)
    moved = _at_same_statement(edit, after)
    assert "already" in refused(moved, after)


def diff_lines(text: str, source: str) -> list[str]:
    """The whole source with the diff's changes in it, with signs: hunks in their places, the rest as context."""
    import re

    lines, result, at = source.splitlines(keepends=True), [], 0
    for hunk in re.split(r"(?m)^@@ ", text)[1:]:
        head, _, body = hunk.partition("\n")
        start = int(re.match(r"-(\d+)", head).group(1)) - 1
        result += [f" {line}" for line in lines[at:start]]
        result += body.splitlines(keepends=True)
        at = start + sum(not line.startswith("+") for line in body.splitlines())
    return result + [f" {line}" for line in lines[at:]]


def _at_same_statement(edit: Edit, after: str) -> Edit:
    from dataclasses import replace

    if isinstance(edit, SetupEdit | SettingsEdit):
        return edit
    text = TRAIN.split("\n")[edit.line - 1].strip().split("(")[0]
    return replace(edit, line=line_of(after, text))


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("/home/user/model.ipynb", "notebook"),
        ("/tmp/ipykernel_4711/123.py", "notebook"),
        ("<string>", "without a file"),
        ("/home/user/loop.pyx", "not a Python source file"),
        ("/home/user/env/lib/python3.11/site-packages/lib/train.py", "installed package"),
        ("/home/user/gone.py", "cannot be read"),
    ],
)
def test_what_is_no_file_of_the_users_is_left_alone(file: str, why: str) -> None:
    assert why in refused(TransferEdit(file, 1), "x = x.to(d)\n")


def test_a_script_that_only_speaks_of_generated_data_is_the_users() -> None:
    source = "# Trains on images that were generated by make_data.py\nx = x.to(d)\n"
    assert changed(TransferEdit(FILE, 2), source)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("# @generated by tool\nx = x.to(d)\n", "generated"),
        ("# Code generated by protoc. DO NOT EDIT.\nx = x.to(d)\n", "generated"),
        ("x = x.to(d) $\n", "not Python source"),
        ("type X[T: = int\n", "not Python source"),
        (b"# coding: nonsense\nx = 1\n", "encoding"),
        (b"x = '\xff'\n", "encoding"),
    ],
)
def test_source_that_is_not_the_users_or_not_source_is_reported(source: str | bytes, why: str) -> None:
    assert why in refused(TransferEdit(FILE, 2), source)
