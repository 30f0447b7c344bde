"""What a loop over a loader is for, as its looks show it, and whether a stack is inside a loop that trains."""

from __future__ import annotations

from collections import Counter

from stack_samples import BACKWARD, CALL, MAIN, NEXT, FakeText, Place, classifier, frame, frames, loader_state, stack

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.stacks import Frame
from gpuwatch.sources.stacks.classify import Places
from gpuwatch.sources.stacks.loops import Loops, Site, TrainingLoops
from gpuwatch.sources.stacks.tally import HeldSamples, StackSample

SOURCE = """\
def train(model, loader):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        if step % 100 == 0:
            for v in validation:
                scores.append(model(v))

def run_epoch(loader, training):
    for x in loader:
        work(x)

def statistics(loader):
    for x in loader:
        total += x.mean()

def endless(batches):
    while True:
        x = next(batches)
        work(x)
"""
FORWARD: tuple[Place, ...] = (("torch/nn/modules/conv.py", "forward", 5), CALL)
LOOK_NS = 10_000_000


class Training:
    """Looks at a process, 10 ms apart, and the phases they are told in."""

    def __init__(self, source: str = SOURCE) -> None:
        self.text = FakeText({MAIN: source})
        self.classifier = classifier(self.text)
        self.loops = Loops(self.classifier, self.text)
        self.held = HeldSamples(self.loops)
        self.now_ns = 0
        self.batches: Counter[int] = Counter()
        self.told: Counter[str] = Counter()

    def look(
        self,
        *inner: Place,
        at: Place,
        loader: int = 1,
        iterator: int = 1,
        outer: tuple[Place, ...] = (),
        times: int = 1,
        workers: int = 0,
    ) -> None:
        for _ in range(times):
            self.now_ns += LOOK_NS
            seen = stack(*inner, at, *outer)
            reading = self.classifier.read(seen.frames)
            if reading.phase == "start":
                self.held.put(StackSample(self.now_ns, reading, None, starts_in=(MAIN, at[1], 1)))
            else:
                if reading.waits:
                    self.batches[iterator] += 1
                state = self._state(len(inner), loader, iterator, workers)
                self.held.put(StackSample(self.now_ns, reading, self.loops.see(seen, state, reading, self.now_ns)))
            self.tell()

    def rest(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)
        self.tell()

    def tell(self) -> None:
        self.told.update(look.phase for look in self.held.ready(self.now_ns, self.now_ns))

    def roles(self) -> dict[int, str | None]:
        return {site.loader: site.role for site in self.loops}

    def site(self, loader: int) -> Site:
        return next(site for site in self.loops if site.loader == loader)

    def _state(self, index: int, loader: int, iterator: int, workers: int) -> LoaderState | None:
        return (
            loader_state(self.batches[iterator], index, loader=loader, iterator=iterator, workers=workers)
            if loader
            else None
        )


TRAIN: Place = (MAIN, "train", 3)
TRAIN_LINE: Place = (MAIN, "train", 2)
VALIDATE: Place = (MAIN, "train", 7)
VALIDATE_LINE: Place = (MAIN, "train", 6)


def a_training_loop() -> Training:
    training = Training()
    for _ in range(5):
        training.look(NEXT, at=TRAIN_LINE)
        training.look(*FORWARD, at=TRAIN)
        training.look(*BACKWARD, at=(MAIN, "train", 4))
    return training


def test_a_loop_with_backward_trains() -> None:
    training = a_training_loop()
    assert training.roles() == {1: "train"}
    assert training.told == {"wait": 5, "forward": 5, "backward": 5}
    assert (training.site(1).line, training.site(1).number) == (2, 1)


def test_looks_are_held_until_the_role_is_known() -> None:
    training = Training()
    training.look(NEXT, at=TRAIN_LINE)
    training.look(*FORWARD, at=TRAIN)
    assert not training.told
    training.look(*BACKWARD, at=(MAIN, "train", 4))
    assert training.told == {"wait": 1, "forward": 1, "backward": 1}


def test_a_loop_without_backward_beside_a_training_one_evaluates() -> None:
    training = a_training_loop()
    training.told.clear()
    for _ in range(5):
        training.look(NEXT, at=VALIDATE_LINE, loader=2, iterator=2)
        training.look(*FORWARD, at=VALIDATE, loader=2, iterator=2, times=3)
    assert training.roles() == {1: "train", 2: "eval"}
    assert training.told == {"eval": 20}


def test_one_function_over_two_loaders_trains_with_one_and_evaluates_with_the_other() -> None:
    training = Training()
    at: Place = (MAIN, "run_epoch", 11)
    for epoch in range(2):
        for _ in range(10):
            training.look(NEXT, at=(MAIN, "run_epoch", 10), loader=1, iterator=10 + epoch)
            training.look(*BACKWARD, at=at, loader=1, iterator=10 + epoch)
        for _ in range(15):
            training.look(NEXT, at=(MAIN, "run_epoch", 10), loader=2, iterator=20 + epoch)
            training.look(*FORWARD, at=at, loader=2, iterator=20 + epoch)
    assert training.roles() == {1: "train", 2: "eval"}
    assert training.told == {"wait": 20, "backward": 20, "eval": 60}


def test_a_loop_under_no_grad_evaluates_at_once() -> None:
    training = Training()
    decorated: Place = ("torch/utils/_contextlib.py", "decorate_context", 120)
    training.look(*FORWARD, at=(MAIN, "run_epoch", 11), outer=(decorated,))
    assert training.told == {"eval": 1}


def test_the_only_loop_is_taken_for_the_training_one_after_two_seconds() -> None:
    training = Training()
    training.look(*FORWARD, at=(MAIN, "run_epoch", 11), times=50)
    assert not training.told
    training.rest(2.1)
    assert training.told == {"forward": 50}


def test_a_supposed_training_loop_that_never_trains_evaluates_once_another_trains() -> None:
    training = Training()
    training.look(*FORWARD, at=(MAIN, "run_epoch", 11), loader=2, iterator=2, times=50)
    training.rest(2.1)
    assert training.roles()[2] == "train"
    training.look(*BACKWARD, at=(MAIN, "train", 4), times=3)
    training.look(*FORWARD, at=(MAIN, "run_epoch", 11), loader=2, iterator=2)
    assert training.roles() == {1: "train", 2: "eval"}


def test_looking_through_a_data_set_before_training_is_no_wait() -> None:
    training = Training()
    training.look(NEXT, at=(MAIN, "statistics", 14), times=50)
    training.rest(2.1)
    assert training.told == {"other": 50}
    assert training.site(1).reported_role == "unknown"


def test_workers_that_start_for_the_evaluation_do_not_start_for_training() -> None:
    training = a_training_loop()
    training.told.clear()
    start: Place = ("torch/utils/data/dataloader.py", "__iter__", 500)
    training.look(start, at=VALIDATE_LINE, times=5)
    for _ in range(15):
        training.look(NEXT, at=VALIDATE_LINE, loader=2, iterator=2)
        training.look(*FORWARD, at=VALIDATE, loader=2, iterator=2)
    assert training.told == {"eval": 35}


def test_workers_that_start_for_training_are_reported_as_such() -> None:
    training = Training()
    training.look(("torch/utils/data/dataloader.py", "__iter__", 500), at=TRAIN_LINE, times=5)
    training.look(*BACKWARD, at=(MAIN, "train", 4))
    assert training.told == {"start": 5, "backward": 1}


def test_a_loader_rebuilt_for_each_epoch_keeps_its_number() -> None:
    training = Training()
    for epoch in (1, 2, 3):
        training.look(NEXT, at=TRAIN_LINE, loader=epoch, iterator=epoch, times=5)
        training.look(*BACKWARD, at=(MAIN, "train", 4), loader=epoch, iterator=epoch, times=5)
    named = training.loops.named()
    assert [(site.number, site.role) for site in named] == [(1, "train")]
    assert named[0].counter.epochs == 2


def test_a_second_loader_read_in_turn_in_a_training_loop_trains_too() -> None:
    training = Training()
    for _ in range(10):
        training.look(NEXT, at=TRAIN_LINE, loader=1, iterator=1)
        training.look(NEXT, at=TRAIN, loader=2, iterator=2)
        training.look(*BACKWARD, at=(MAIN, "train", 4), loader=1, iterator=1)
    assert training.roles() == {1: "train", 2: "train"}
    assert "eval" not in training.told


def test_next_in_an_endless_loop_is_found_again_in_the_loops_body() -> None:
    training = Training()
    for _ in range(3):
        training.look(NEXT, at=(MAIN, "endless", 19))
        training.look(*BACKWARD, at=(MAIN, "endless", 20), loader=0)
    assert training.roles() == {1: "train"}
    assert training.site(1).line == 19
    assert training.told == {"wait": 3, "backward": 3}


def test_an_iterator_that_outlives_its_loop_is_no_loop() -> None:
    training = a_training_loop()
    helper: Place = (MAIN, "helper", 500)
    training.look(*BACKWARD, at=helper, loader=2, iterator=2, outer=((MAIN, "train", 4),), times=30)
    assert training.roles() == {1: "train"}


def test_looks_of_a_stopped_process_are_dropped() -> None:
    training = Training()
    training.look(*FORWARD, at=TRAIN, times=10)
    training.held.drop_since(training.now_ns - 4 * LOOK_NS)
    training.look(*BACKWARD, at=TRAIN)
    assert training.told == {"forward": 6, "backward": 1}


def test_a_next_whose_iterator_could_not_be_read_belongs_to_the_loop_it_is_in() -> None:
    training = a_training_loop()
    training.look(NEXT, at=TRAIN_LINE, loader=0, times=3)
    assert training.roles() == {1: "train"}
    assert training.told["wait"] == 8


def test_where_no_iterator_can_be_read_loops_are_reported_and_entries_into_next_counted() -> None:
    training = Training()
    for _ in range(20):
        training.look(NEXT, at=TRAIN_LINE, loader=0, times=2)
        training.look(*BACKWARD, at=(MAIN, "train", 4), loader=0)
    assert training.roles() == {0: "train"}
    counter = training.site(0).counter
    assert not counter.exact
    assert 8 <= counter.batches <= 20


def infer(process: Training, seconds: float, *outer: Place) -> None:
    """A loop over a loader under no_grad: a fifth of the samples in its model."""
    for _ in range(int(seconds * 20)):
        process.look(NEXT, at=VALIDATE_LINE, outer=outer, times=4)
        process.look(*FORWARD, at=VALIDATE, outer=outer)


DECORATED: Place = ("torch/utils/_contextlib.py", "decorate_context", 120)


def test_a_loop_that_takes_no_gradients_is_the_work_of_a_process_that_trains_nothing() -> None:
    process = Training()
    infer(process, 5, DECORATED)
    assert process.roles() == {1: "eval"} and not process.loops.infers
    infer(process, 10, DECORATED)
    assert process.roles() == {1: "train"} and process.loops.infers
    process.told.clear()
    infer(process, 10, DECORATED)
    process.rest(3)
    assert process.told["wait"] == 800 and process.told["eval"] == 0


def test_a_training_that_begins_after_that_makes_it_an_evaluation_again() -> None:
    process = Training()
    infer(process, 20, DECORATED)
    for _ in range(30):
        process.look(NEXT, at=TRAIN_LINE, loader=2, iterator=2)
        process.look(*FORWARD, at=TRAIN, loader=2, iterator=2)
        process.look(*BACKWARD, at=(MAIN, "train", 4), loader=2, iterator=2)
    infer(process, 3, DECORATED)
    assert not process.loops.infers
    assert process.roles() == {1: "eval", 2: "train"}


def test_a_process_that_has_left_its_only_loop_still_infers_and_stands_in_none() -> None:
    process = Training()
    infer(process, 15, DECORATED)
    after = stack((MAIN, "main", 90))
    assert process.loops.see(after, None, process.classifier.read(after.frames), process.now_ns) is None
    assert process.loops.infers


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
