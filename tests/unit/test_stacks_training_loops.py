"""Whether a stack is inside a loop that trains."""

from __future__ import annotations

from stack_looks import BACKWARD, CALL, MAIN, NEXT, FakeText, Place, classifier, frame, frames

from gpuwatch.reader.stacks import Frame
from gpuwatch.sources.stacks.classify import Places
from gpuwatch.sources.stacks.loops import TrainingLoops

SCRIPT = """\
def train(loader):
    for epoch in range(9):
        for x, y in loader:
            loss = step(x, y)
        evaluate()
    upload()

def step(x, y):
    for part in split(x, y):
        loss = criterion(part)
        loss.backward()

def main():
    train(loader)
    time.sleep(600)
"""
MAIN_CALL: Place = (MAIN, "main", 14)
IN_STEP: tuple[Place, ...] = (*BACKWARD, (MAIN, "step", 11), (MAIN, "train", 4), MAIN_CALL)


class Watch:
    """Samples of one process."""

    def __init__(self, script: str | None = SCRIPT) -> None:
        text = FakeText({MAIN: script} if script is not None else {})
        self._loops = TrainingLoops(Places(), text)
        self._classifier = classifier(text)

    def see(self, *inner_to_outer: Place, around: tuple[Frame, ...] = ()) -> bool | None:
        stack = (*frames(*inner_to_outer), *around)
        return self._loops.hold(stack, self._classifier.read(stack))


def test_before_anything_trained_it_is_not_known() -> None:
    assert Watch().see((MAIN, "main", 15)) is None


def test_every_line_of_the_outermost_loop_is_inside_and_what_follows_it_is_not() -> None:
    watch = Watch()
    assert watch.see(*IN_STEP) is True
    assert watch.see((MAIN, "evaluate", 70), (MAIN, "train", 5), MAIN_CALL) is True
    assert watch.see(("threading.py", "wait", 10), (MAIN, "step", 10), (MAIN, "train", 4), MAIN_CALL) is True
    assert watch.see(NEXT, (MAIN, "train", 3), MAIN_CALL) is True
    assert watch.see((MAIN, "upload", 80), (MAIN, "train", 6), MAIN_CALL) is False
    assert watch.see((MAIN, "main", 15)) is False


def test_a_librarys_function_that_the_script_calls_counts_as_a_whole() -> None:
    fit: Place = ("transformers/trainer.py", "_inner_training_loop", 2500)
    watch = Watch("trainer.train()\ntrainer.push_to_hub()\n")
    assert watch.see(*BACKWARD, ("transformers/trainer.py", "training_step", 3700), fit, (MAIN, "main", 1)) is True
    assert watch.see(("transformers/trainer.py", "_inner_training_loop", 2600), (MAIN, "main", 1)) is True
    assert watch.see(("huggingface_hub/hf_api.py", "upload_folder", 9), (MAIN, "main", 2)) is False


def test_what_called_the_script_does_not_count() -> None:
    kernel = (frame("ipykernel/kernelapp.py", "start", 700), frame("ipykernel_launcher.py", "<module>", 18))
    cell: Place = ("/tmp/ipykernel_7/2.py", "<module>", 3)
    watch = Watch(None)
    stack = (*(frame(*place) for place in (*BACKWARD, cell)), *kernel)
    assert watch._loops.hold(stack, watch._classifier.read(stack)) is True
    assert watch._loops.hold(kernel, watch._classifier.read(kernel)) is False


def test_a_function_whose_source_is_not_known_counts_as_a_whole() -> None:
    watch = Watch(None)
    assert watch.see(*BACKWARD, (MAIN, "train", 4), MAIN_CALL) is True
    assert watch.see(CALL, (MAIN, "train", 9), MAIN_CALL) is True
    assert watch.see((MAIN, "other", 15)) is True, "the module's own lines are not known either"
