"""Which phase a stack of the training thread belongs to, and which line of it is the user's own."""

from __future__ import annotations

import pytest
from stack_samples import ADAM, BACKWARD, CALL, MAIN, NEXT, SITE, STDLIB, Place, frame, frames, read

from gpuwatch.hook import hidden
from gpuwatch.sources.stacks.classify import Mark, Owner, Places, culprit_index, mark_of

STEP = """\
for x, y in loader:
    x = x.to(device, non_blocking=True)
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    total += loss.item()
    print(total)
    half = x.to(torch.float16)
    logs = {
        "loss": loss.detach().cpu(),
        "step": step,
    }
    h = x @ weight
    if step % 10 == 0 and loss.item() > limit:
        step += 1
    pickle.dump(state, file)
    names = list(table.items())
"""


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        (2, "copy"),
        (6, "sync"),
        (7, "log"),
        (8, "other"),  # a change of type moves nothing
        (9, "sync"),  # the call stands on another line of the same statement
        (11, "sync"),
        (13, "forward"),
        (14, "sync"),
        (15, "other"),  # only the header of the `if` asks for the number
        (16, "save"),
        (17, "other"),  # .items( is not .item(
    ],
)
def test_a_leaf_line_of_the_user_is_what_its_statement_asks_for(line: int, phase: str) -> None:
    assert read((MAIN, "train", line), source=STEP).phase == phase


STEP_LINE: Place = (MAIN, "train", 3)


@pytest.mark.parametrize(
    ("inner", "phase"),
    [
        ([NEXT], "wait"),
        ([("PIL/Image.py", "resize", 9), (MAIN, "__getitem__", 50), NEXT], "wait"),
        (
            [("torch/utils/data/dataloader.py", "__init__", 5), ("torch/utils/data/dataloader.py", "__iter__", 6)],
            "start",
        ),
        ([("torchdata/stateful_dataloader/stateful_dataloader.py", "__next__", 5)], "wait"),
        ([(MAIN, "batches", 50), ("gpuwatch/hook/api.py", "__next__", 5)], "wait"),  # gpuwatch.loader(...)
        ([*BACKWARD], "backward"),
        ([*ADAM], "optimizer"),
        ([("torch/nn/utils/clip_grad.py", "clip_grad_norm_", 5)], "optimizer"),
        ([("torch/amp/grad_scaler.py", "_maybe_opt_step", 5), ("torch/amp/grad_scaler.py", "step", 5)], "optimizer"),
        ([("torch/nn/functional.py", "cross_entropy", 5)], "forward"),
        ([("torch/nn/modules/conv.py", "forward", 5), CALL], "forward"),
        ([(MAIN, "forward", 80), CALL], "forward"),
        ([("torch/serialization.py", "_save", 5), ("torch/serialization.py", "save", 6)], "save"),
        ([("torch/serialization.py", "load", 6)], "other"),
        ([("safetensors/torch.py", "save_file", 6)], "save"),
        ([("torch/distributed/checkpoint/state_dict_saver.py", "save", 6)], "save"),
        ([("torch/_dynamo/convert_frame.py", "__call__", 5), ("torch/_dynamo/eval_frame.py", "_fn", 5)], "compile"),
        ([("torch/_inductor/output_code.py", "__call__", 5), ("torch/_dynamo/eval_frame.py", "_fn", 5)], "forward"),
        ([("torch/_dynamo/convert_frame.py", "<module>", 5), ("<frozen importlib._bootstrap>", "_load", 1)], "other"),
        ([("wandb/sdk/wandb_run.py", "log", 5)], "log"),
        ([("logging/__init__.py", "info", 5)], "log"),
        ([("torch/utils/tensorboard/writer.py", "add_scalar", 5)], "log"),
        ([("torch/cuda/__init__.py", "synchronize", 5)], "sync"),
        ([("accelerate/utils/operations.py", "send_to_device", 5)], "copy"),
    ],
)
def test_library_frames_below_the_users_line_tell_the_phase(inner: list[Place], phase: str) -> None:
    assert read(*inner, STEP_LINE, source=STEP).phase == phase


def test_forward_recomputed_in_backward_is_backward() -> None:
    recomputed: list[Place] = [
        ("torch/nn/modules/conv.py", "forward", 5),
        CALL,
        ("torch/utils/checkpoint.py", "unpack", 9),
    ]
    assert read(*recomputed, *BACKWARD, STEP_LINE, source=STEP).phase == "backward"


def test_an_optimizer_that_steps_in_a_hook_of_backward_is_the_optimizer() -> None:
    assert read(*ADAM, (MAIN, "hook", 90), *BACKWARD, STEP_LINE, source=STEP).phase == "optimizer"


@pytest.mark.parametrize(
    ("inner", "phase"),
    [
        ([("torch/nn/modules/conv.py", "forward", 5), CALL], "forward"),
        ([*BACKWARD], "backward"),
        ([NEXT], "wait"),
    ],
)
def test_what_an_optimizer_calls_back_is_not_the_optimizer(inner: list[Place], phase: str) -> None:
    closure: Place = ("lightning/pytorch/loops/optimization/closure.py", "closure", 130)
    assert read(*inner, closure, *ADAM, ("lightning/pytorch/loops/fit_loop.py", "run", 1)).phase == phase


def test_an_optimizer_of_the_users_own_is_the_optimizer() -> None:
    assert read((MAIN, "step", 70), ADAM[-1], STEP_LINE, source=STEP).phase == "optimizer"


def test_gathering_the_optimizers_state_for_a_checkpoint_is_saving() -> None:
    source = "torch.save({'optimizer': optimizer.state_dict()}, path)\n"
    assert read(("torch/optim/optimizer.py", "state_dict", 5), (MAIN, "train", 1), source=source).phase == "save"


def test_item_in_a_tensor_subclass_stays_sync() -> None:
    inner: list[Place] = [("torch/_tensor.py", "__torch_function__", 9), (MAIN, "__torch_function__", 80)]
    source = STEP + "\n" * 70
    assert read(inner[0], (MAIN, "train", 6), source=source).phase == "sync"


def test_item_of_a_norm_that_torch_computes_in_python_stays_sync() -> None:
    assert read(("torch/functional.py", "norm", 9), (MAIN, "train", 6), source=STEP).phase == "sync"


def test_the_line_of_a_framework_that_asks_for_a_number_is_sync() -> None:
    trainer = SITE + "transformers/trainer.py"
    from stack_samples import FakeText, classifier

    text = FakeText({trainer: "loss = 1\ntr_loss_scalar = tr_loss.item()\n"})
    found = classifier(text).read(frames((trainer, "_maybe_log_save_evaluate", 2), (MAIN, "main", 3)))
    assert found.phase == "sync"
    assert found.culprit is not None
    assert (found.culprit.file, found.culprit.leaf) == (MAIN, "transformers/trainer.py:_maybe_log_save_evaluate")


@pytest.mark.parametrize(
    "inner",
    [
        [CALL, ("transformers/trainer.py", "evaluation_loop", 5), ("transformers/trainer.py", "evaluate", 5)],
        [CALL, ("lightning/pytorch/loops/evaluation_loop.py", "_evaluation_step", 5)],
        [CALL, (MAIN, "estimate_loss", 30), ("torch/utils/_contextlib.py", "decorate_context", 120)],
    ],
)
def test_evaluation_is_seen_without_any_loader(inner: list[Place]) -> None:
    assert read(*inner, STEP_LINE).evaluates


def test_a_helper_without_gradients_does_not_evaluate() -> None:
    found = read((MAIN, "update_average", 30), ("torch/utils/_contextlib.py", "decorate_context", 120), STEP_LINE)
    assert not found.evaluates


@pytest.mark.parametrize(
    ("leaf", "receives"),
    [
        (("torch/multiprocessing/reductions.py", "rebuild_storage_fd", 5), True),
        (("multiprocessing/connection.py", "_recv", 5), True),
        (("multiprocessing/connection.py", "_poll", 5), False),
        (("selectors.py", "select", 5), False),
        (("threading.py", "wait", 5), False),
    ],
)
def test_taking_a_batch_over_is_distinguished_from_waiting_for_it(leaf: Place, receives: bool) -> None:
    get: Place = ("multiprocessing/queues.py", "get", 113)
    assert (
        read(leaf, get, ("torch/utils/data/dataloader.py", "_try_get_data", 4), NEXT, STEP_LINE).receiving is receives
    )


def test_unpickling_in_c_is_seen_by_the_line_of_the_queue() -> None:
    from stack_samples import STDLIB, FakeText, classifier

    queues = STDLIB + "multiprocessing/queues.py"
    text = FakeText({queues: "res = self._recv_bytes()\nreturn _ForkingPickler.loads(res)\nself._rlock.acquire()\n"})
    reads = [classifier(text).read(frames((queues, "get", line), NEXT, STEP_LINE)).receiving for line in (1, 2, 3)]
    assert reads == [True, True, False]


AUGMENT = "import numpy\n\ndef __getitem__(self, index):\n    return image.resize((64, 64))\n"


def test_the_innermost_line_of_the_user_is_named_with_the_library_function_below_it() -> None:
    found = read(
        ("posixpath.py", "join", 7),
        ("PIL/Image.py", "resize", 2300),
        (MAIN, "__getitem__", 4),
        NEXT,
        (MAIN, "train", 9),
        source=AUGMENT,
    )
    assert found.culprit is not None
    assert (found.culprit.line, found.culprit.function) == (4, "__getitem__")
    assert found.culprit.text == "return image.resize((64, 64))"
    assert found.culprit.leaf == "PIL/Image.py:resize"


def test_a_line_that_runs_itself_has_no_leaf() -> None:
    found = read((MAIN, "__getitem__", 4), NEXT, (MAIN, "train", 9), source=AUGMENT)
    assert found.culprit is not None
    assert found.culprit.leaf is None


def test_a_line_whose_file_cannot_be_read_is_named_without_its_text() -> None:
    found = read((MAIN, "__getitem__", 4), NEXT)
    assert found.culprit is not None
    assert (found.culprit.line, found.culprit.text) == (4, None)


def test_the_calls_that_led_to_the_line_are_known_up_to_the_loaders_next() -> None:
    found = read(
        ("PIL/Image.py", "resize", 2300),
        (MAIN, "warp", 57),
        ("torchvision/transforms/transforms.py", "__call__", 95),
        (MAIN, "walk", 41),
        (MAIN, "walk", 44),
        (MAIN, "__getitem__", 4),
        NEXT,
        (MAIN, "train", 9),
        source=AUGMENT,
    )
    assert [(call.line, call.function, call.callee) for call in found.calls] == [
        (41, "walk", "warp"),
        (4, "__getitem__", "walk"),
    ]
    assert found.calls[1].text == "return image.resize((64, 64))"


def test_calls_are_of_what_may_make_batches_only() -> None:
    own = read((MAIN, "tokenize", 30), (MAIN, "get_batch", 20), (MAIN, "train", 9)).calls
    assert [call.callee for call in own] == ["tokenize", "get_batch", "train"]
    assert read(("torch/optim/sgd.py", "step", 7), (MAIN, "update", 30), (MAIN, "train", 9)).calls == ()


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/ada/project/data.py", Owner.USER),
        ("train.py", Owner.USER),
        ("/tmp/ipykernel_12/345.py", Owner.USER),
        (SITE + "numpy/core.py", Owner.LIBRARY),
        ("/usr/lib/python3/dist-packages/numpy/core.py", Owner.LIBRARY),
        (STDLIB + "json/decoder.py", Owner.STANDARD),
        ("/root/miniconda3/lib/python3.12/random.py", Owner.STANDARD),
        ("<frozen importlib._bootstrap>", Owner.NOBODY),
        ("<string>", Owner.NOBODY),
        ("/tmp/torchinductor_ada/ab/cabc.py", Owner.NOBODY),
        ("/home/ada/gpuwatch/gpuwatch/hook/waits.py", Owner.GPUWATCH),
        ("/home/ada/torch/helpers.py", Owner.USER),
    ],
)
def test_whose_a_file_is(file: str, owner: Owner) -> None:
    assert Places().of(file).owner is owner


def test_a_torch_that_was_built_in_place_is_a_library() -> None:
    places = Places(exists=lambda file: file == "/src/pytorch/torch/nn/modules/module.py")
    assert places.of("/src/pytorch/torch/optim/adam.py").module == "torch/optim/adam.py"
    assert places.of("/src/pytorch/torch/optim/adam.py").owner is Owner.LIBRARY


def test_an_installed_trainer_is_the_users_where_nothing_else_is() -> None:
    inner = [frame(*CALL), frame("mytrainer/model.py", "forward", 5), frame("mytrainer/main.py", "<module>", 9)]
    places = [Places().of(each.code.file) for each in inner]
    assert culprit_index(places) == 1


def test_a_launcher_is_nobodys_own_code() -> None:
    inner = [frame("torch/distributed/run.py", "main", 5), frame("torch/distributed/run.py", "<module>", 9)]
    assert culprit_index([Places().of(each.code.file) for each in inner]) is None


SAVING = "def keep(path):\n    torch.save(state, path)\n\ndef __getstate__(self):\n    return dict(vars(self))\n"


@pytest.mark.parametrize("called_back", [[], [(MAIN, "__getstate__", 5)], [("pickle.py", "dumps", 3), (MAIN, "f", 5)]])
def test_a_save_is_the_line_that_calls_it_whatever_of_the_users_it_calls_back(
    called_back: list[tuple[str, str, int]],
) -> None:
    saving = [("torch/serialization.py", "_save", 900), ("torch/serialization.py", "save", 800)]
    found = read(*called_back, *saving, (MAIN, "keep", 2), (MAIN, "train", 9), source=SAVING)
    assert (found.phase, found.culprit and found.culprit.line) == ("save", 2)
    assert found.culprit is not None
    assert found.culprit.text == "torch.save(state, path)"
    assert found.culprit.leaf == "torch/serialization.py:_save"


def test_a_save_that_a_save_calls_back_is_the_outer_ones_line() -> None:
    saving = ("torch/serialization.py", "save", 800)
    found = read(saving, (MAIN, "__reduce__", 5), saving, (MAIN, "keep", 2), source=SAVING)
    assert found.culprit is not None
    assert found.culprit.line == 2


def test_what_the_hook_puts_in_the_place_of_torchs_functions_is_gpuwatchs() -> None:
    places = Places(lambda path: False)
    assert places.of(hidden.FILE).owner is Owner.GPUWATCH
    assert mark_of(places.of(f"{hidden.FILE}/hook/api.py"), "__next__") is Mark.NEXT
