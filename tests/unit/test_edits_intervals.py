"""Logging, evaluating and saving this many times as rarely, in scripts as people write them."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from gpuwatch.diagnosis.finding import IntervalEdit
from tests.unit.edit_sources import FILE, changed, diff_of, line_of, patched, refused

EPOCHS = dedent("""\
    import argparse

    import torch
    from torch.utils.data import DataLoader

    parser = argparse.ArgumentParser()
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=14)
    args = parser.parse_args()


    def train(model, loader, optimizer, epoch):
        model.train()
        for batch_idx, (data, target) in enumerate(loader):
            data, target = data.to("cuda"), target.to("cuda")
            optimizer.zero_grad()
            loss = torch.nn.functional.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            if batch_idx % args.log_interval == 0:
                print(f"{epoch} {batch_idx} {loss.item():.6f}")


    def validate(model, loader):
        model.eval()
        with torch.no_grad():
            for i, (data, target) in enumerate(loader):
                output = model(data.to("cuda"))
                print(i, output.argmax(1).eq(target.to("cuda")).sum())


    def save_checkpoint(model, path):
        torch.save(model.state_dict(), path)


    for epoch in range(1, args.epochs + 1):
        train(model, loader, optimizer, epoch)
        validate(model, held_out)
        save_checkpoint(model, "last.pt")
    """)

STEPS = dedent("""\
    import torch

    eval_interval = 2000
    iter_num = 0


    @torch.no_grad()
    def estimate_loss():
        model.eval()
        for k in range(200):
            losses[k] = model(get_batch("val")).item()
        model.train()
        return losses.mean()


    while True:
        if iter_num % eval_interval == 0 and master_process:
            loss = estimate_loss()
            print(loss)
            torch.save(model.state_dict(), "ckpt.pt")
        step(get_batch("train"))
        iter_num += 1
    """)

FACE = dedent("""\
    from transformers import Trainer, TrainingArguments

    training_args = TrainingArguments(
        output_dir="out",
        eval_strategy="steps",
        eval_steps=100,
        save_steps=100,  # small disks
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=data)
    trainer.train()
    """)

LIGHTNING = dedent("""\
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    checkpoint = ModelCheckpoint(dirpath="out", every_n_train_steps=50)
    trainer = L.Trainer(max_epochs=10, callbacks=[checkpoint], log_every_n_steps=1)
    trainer.fit(model, loader)
    """)


def rarer(source: str, text: str, times: int, what: str = "log", *present: int) -> IntervalEdit:
    per = "step" if what == "log" else "epoch"
    return IntervalEdit(FILE, line_of(source, text), times, per, times, present, what)  # type: ignore[arg-type]


def logging(source: str, text: str = "print(", times: int = 12) -> IntervalEdit:
    return rarer(source, text, times)


class TestPlainLoops:
    def test_an_interval_that_is_an_option_gets_longer_by_its_default(self) -> None:
        assert changed(logging(EPOCHS, "{loss.item()"), EPOCHS) == [
            '-parser.add_argument("--log-interval", type=int, default=10)',
            '+parser.add_argument("--log-interval", type=int, default=120)',
        ]

    def test_an_interval_of_the_command_line_is_to_be_given_there(self) -> None:
        reason = refused(logging(EPOCHS, "{loss.item()"), EPOCHS, ("python", "train.py", "--log-interval", "5"))
        assert reason == "it was started with --log-interval 5: start it with --log-interval 60"

    @pytest.mark.parametrize(
        ("text", "what", "call"),
        [
            ("output = model", "evaluate", "validate(model, held_out)"),
            ("torch.save", "save", "save_checkpoint(model, "),
        ],
    )
    def test_what_an_epoch_ends_with_is_left_out_where_it_is_called(self, text: str, what: str, call: str) -> None:
        lines = changed(rarer(EPOCHS, text, 4, what, 938, 1), EPOCHS)
        assert lines[0].startswith(f"-    {call}")
        assert lines[1] == "+    if epoch % 4 == 0 or epoch + 1 == (args.epochs + 1):"
        assert lines[2].startswith(f"+        {call}")

    def test_an_evaluation_between_steps_gets_its_own_interval_longer(self) -> None:
        for text, what in (("losses[k] =", "evaluate"), ("torch.save", "save")):
            assert changed(rarer(STEPS, text, 3, what, 2000), STEPS) == [
                "-eval_interval = 2000",
                "+eval_interval = 6000",
            ]

    def test_an_interval_that_the_run_does_not_have_is_set_elsewhere(self) -> None:
        reason = refused(rarer(STEPS, "losses[k] =", 3, "evaluate", 500), STEPS)
        assert reason == "eval_interval is 2000, but the run was seen to have 500: it is set elsewhere"

    def test_made_once_it_is_not_made_again(self) -> None:
        bare = "for step, x in enumerate(loader):\n    print(loss.item())\n"
        once = "for step, x in enumerate(loader):\n    if step % 12 == 0:\n        print(loss.item())\n"
        assert changed(logging(bare), bare)[1:] == ["+    if step % 12 == 0:", "+        print(loss.item())"]
        assert "already does it only every 12 times" in refused(logging(once), once)
        # What the run was seen to do is no longer what the file says.
        raised = STEPS.replace("= 2000", "= 6000")
        assert "set elsewhere" in refused(rarer(raised, "losses[k] =", 3, "evaluate", 2000), raised)

    def test_two_fixes_of_one_interval_change_it_once(self) -> None:
        diff = diff_of([rarer(STEPS, "losses[k] =", 3, "evaluate"), rarer(STEPS, "torch.save", 5, "save")], STEPS)
        assert diff.text is not None and "+eval_interval = 6000" in diff.text
        assert diff.reason is not None and diff.reason.startswith("an earlier fix of this patch changes eval_interval")

    def test_a_function_that_several_places_call_is_reported(self) -> None:
        twice = f"{EPOCHS}validate(model, test)\n"
        assert "called 2 times" in refused(rarer(twice, "output = model", 4, "evaluate"), twice)

    def test_an_interval_of_a_yaml_file_gets_longer_there(self) -> None:
        source = (
            "cfg = yaml.safe_load(open(args.config))\nfor step, x in enumerate(loader):\n"
            '    if step % cfg["log_every"] == 0:\n        print(loss.item())\n'
        )
        command = ("python", "train.py", "--config", "base.yaml")
        lines = changed(logging(source), source, command, base_yaml="log_every: 5  # steps\nlr: 0.1\n")
        assert lines == ["-log_every: 5  # steps", "+log_every: 60  # steps"]

    @pytest.mark.parametrize(
        ("statement", "why"),
        [
            ("torch.cuda.synchronize()", "waits for the GPU, and the code after it may rely on that"),
            ("total += loss.item()", "adds to total, which is used outside of it"),
            ("scheduler.step(loss.item())", "may do more than log"),
        ],
    )
    def test_what_may_be_needed_in_every_step_is_reported(self, statement: str, why: str) -> None:
        source = f"for step, x in enumerate(loader):\n    {statement}\n"
        assert why in refused(logging(source, statement), source)

    @pytest.mark.parametrize(
        ("number", "why"),
        [("len(loader) // 4", "is computed"), ("0.5", "not a whole number"), ("every()", "is computed")],
    )
    def test_an_interval_that_is_no_number_is_reported(self, number: str, why: str) -> None:
        source = f"for step, x in enumerate(loader):\n    if step % ({number}) == 0:\n        print(loss.item())\n"
        assert why in refused(logging(source), source)


class TestHuggingFace:
    def test_the_steps_of_the_arguments_get_longer(self) -> None:
        assert changed(rarer(FACE, "trainer.train()", 5, "evaluate", 100), FACE) == [
            "-    eval_steps=100,",
            "+    eval_steps=500,",
        ]
        assert changed(rarer(FACE, "trainer.train()", 4, "save", 100), FACE) == [
            "-    save_steps=100,  # small disks",
            "+    save_steps=400,  # small disks",
        ]

    def test_what_has_a_default_is_added(self) -> None:
        assert changed(rarer(FACE, "trainer.train()", 10), FACE)[-1] == "+    logging_steps=5000,"

    def test_each_epoch_becomes_so_many_steps_where_they_were_seen(self) -> None:
        each = FACE.replace('"steps"', '"epoch"').replace("    eval_steps=100,\n", "")
        lines = changed(rarer(each, "trainer.train()", 3, "evaluate", 250), each)
        assert '+    eval_strategy="steps",' in lines and "+    eval_steps=750," in lines
        assert "eval_strategy is epoch" in refused(rarer(each, "trainer.train()", 3, "evaluate"), each)
        old = each.replace("eval_strategy", "evaluation_strategy")
        assert '+    evaluation_strategy="steps",' in changed(rarer(old, "trainer.train()", 3, "evaluate", 250), old)

    def test_what_is_tied_or_computed_or_parsed_is_reported(self) -> None:
        tied = FACE.replace("eval_steps=100", "eval_steps=100,\n    load_best_model_at_end=True")
        assert "ties evaluating and saving" in refused(rarer(tied, "trainer.train()", 5, "evaluate"), tied)
        part = FACE.replace("eval_steps=100", "eval_steps=0.1")
        assert "not a whole number" in refused(rarer(part, "trainer.train()", 5, "evaluate"), part)
        parsed = (
            "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
            "args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
            "trainer = Trainer(args=args)\ntrainer.train()\n"
        )
        reason = refused(rarer(parsed, "trainer.train()", 5, "save"), parsed)
        assert reason.endswith("start it with 5 times its --save_steps")

    def test_a_loop_of_ones_own_beside_the_library_is_ones_own(self) -> None:
        own = "from transformers import AutoModel\nfor step, x in enumerate(loader):\n    model.train()\n"
        assert "may do more than log" in refused(logging(own, "model.train()"), own)


class TestLightning:
    def test_the_flags_of_the_trainer_get_longer(self) -> None:
        assert changed(rarer(LIGHTNING, "trainer.fit", 20), LIGHTNING)[1].endswith("log_every_n_steps=20)")
        lines = changed(rarer(LIGHTNING, "trainer.fit", 4, "evaluate", 300, 1), LIGHTNING)
        assert lines[1].endswith("log_every_n_steps=1, check_val_every_n_epoch=4)")

    def test_an_interval_in_steps_gets_longer(self) -> None:
        often = LIGHTNING.replace("log_every_n_steps=1", "val_check_interval=100")
        assert "val_check_interval=400)" in changed(rarer(often, "trainer.fit", 4, "evaluate", 100), often)[1]
        lines = changed(rarer(LIGHTNING, "trainer.fit", 10, "save", 50), LIGHTNING)
        assert lines[1] == '+checkpoint = ModelCheckpoint(dirpath="out", every_n_train_steps=500)'

    def test_what_has_no_call_or_no_steps_is_reported(self) -> None:
        without = LIGHTNING.replace('ModelCheckpoint(dirpath="out", every_n_train_steps=50)', "None")
        assert "holds no ModelCheckpoint(...) call" in refused(rarer(without, "trainer.fit", 4, "save"), without)
        parts = LIGHTNING.replace("log_every_n_steps=1", "val_check_interval=0.25")
        assert "not a whole number" in refused(rarer(parts, "trainer.fit", 4, "evaluate"), parts)
        clock = LIGHTNING.replace("every_n_train_steps=50", "train_time_interval=delta")
        assert "saves at time intervals" in refused(rarer(clock, "trainer.fit", 4, "save"), clock)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")
@pytest.mark.parametrize(
    ("source", "edits"),
    [
        (
            EPOCHS,
            (
                logging(EPOCHS, "{loss.item()"),
                rarer(EPOCHS, "output = model", 4, "evaluate", 938, 1),
                rarer(EPOCHS, "torch.save", 3, "save", 938, 1),
            ),
        ),
        (STEPS, (rarer(STEPS, "losses[k] =", 3, "evaluate", 2000),)),
        (
            FACE,
            (
                rarer(FACE, "trainer.train()", 5, "evaluate", 100),
                rarer(FACE, "trainer.train()", 4, "save", 100),
                rarer(FACE, "trainer.train()", 2),
            ),
        ),
        (
            LIGHTNING,
            (rarer(LIGHTNING, "trainer.fit", 20), rarer(LIGHTNING, "trainer.fit", 10, "save", 50)),
        ),
    ],
    ids=["epochs", "steps", "transformers", "lightning"],
)
def test_the_patch_applies_and_leaves_source(source: str, edits: Sequence[IntervalEdit], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    patch = patched(edits, {"train.py": source})
    for options in (("--check",), ()):
        subprocess.run(["git", "apply", *options, "-"], input=patch, cwd=tmp_path, check=True, capture_output=True)
    after = (tmp_path / "train.py").read_text()
    ast.parse(after)
    assert after != source
