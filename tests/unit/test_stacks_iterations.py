"""Which loop of a training without a loader is counted, and by what."""

from __future__ import annotations

from gpuwatch.reader.stacks import Frame
from gpuwatch.sources.stacks.counts import Iterations
from tests.unit.stack_looks import MAIN, FakeText, Place, classifier, frames

SECOND = 10**9
NANOGPT = """\
iter_num = 0
while True:
    for micro_step in range(4):
        loss = model(x)
        loss.backward()
    optimizer.step()
    iter_num += 1
"""
BACKWARD: tuple[Place, ...] = (("torch/_tensor.py", "backward", 9), (MAIN, "<module>", 5))
STEP: tuple[Place, ...] = (("torch/optim/adam.py", "step", 9), (MAIN, "<module>", 6))


class Training:
    """A process whose variables are a dict, and which is sampled once a second unless told otherwise."""

    def __init__(self, source: str) -> None:
        self.text = FakeText({MAIN: source})
        self.classifier = classifier(self.text)
        self.values: dict[str, int] = {}
        self.iterations = Iterations(self.classifier, self.text, self._integer)
        self.asked: list[str] = []
        self.now_ns = 0

    def _integer(self, frame: Frame, name: str) -> int | None:
        self.asked.append(name)
        return self.values.get(name) if frame.code.file == MAIN else None

    def sample(self, *places: Place, times: int = 1, step_ns: int = SECOND, **values: int) -> None:
        self.values.update(values)
        for _ in range(times):
            self.now_ns += step_ns
            stack = frames(*places)[:-1]
            self.iterations.see(stack, self.classifier.read(stack), self.now_ns)

    @property
    def counted(self) -> int:
        return self.iterations.counter.batches


def test_the_loop_around_the_optimizer_counts_not_the_one_that_accumulates() -> None:
    training = Training(NANOGPT)
    training.sample(*BACKWARD, times=50, micro_step=2, iter_num=100)
    assert training.iterations.read_ns is None
    training.sample(*STEP, times=3)
    training.sample(*BACKWARD, iter_num=140)
    assert training.counted == 40
    assert set(training.asked) == {"iter_num"}


def test_without_a_step_of_torch_the_loop_around_the_backward_counts() -> None:
    training = Training("for batch, i in enumerate(range(0, n, 35)):\n  f()\n\n\n  loss.backward()\n")
    training.sample(*BACKWARD, times=100, batch=7)
    training.sample(*BACKWARD, batch=19)
    assert training.counted == 12


def test_a_count_that_begins_again_is_the_next_epoch() -> None:
    training = Training("for batch in range(n):\n  f()\n\n\n\n  optimizer.step()\n")
    training.sample(*STEP, times=3, batch=0)
    training.sample(*STEP, times=10, batch=90)
    training.sample(*STEP, batch=5)
    assert training.counted >= 95


def test_the_variable_is_read_ten_times_a_second_at_most_and_only_in_its_loop() -> None:
    training = Training(NANOGPT)
    training.sample(*STEP, times=3, iter_num=1)
    training.asked.clear()
    training.sample(*STEP, times=50, step_ns=SECOND // 100)
    assert 4 <= len(training.asked) <= 6
    training.asked.clear()
    training.sample((MAIN, "<module>", 1), times=5)
    assert not training.asked


def test_a_loop_that_counts_epochs_is_not_the_one_that_steps() -> None:
    training = Training("for epoch in range(9):\n  for batch in batches:\n\n\n\n    optimizer.step()\n")
    training.sample(*STEP, times=20, epoch=5, batch=3)
    assert training.iterations.read_ns is None


def test_a_library_s_loop_and_one_that_counts_nothing_are_not_counted() -> None:
    training = Training("while True:\n  f()\n\n\n\n  optimizer.step()\n")
    training.sample(*STEP, times=20, step=5)
    library = ("stable_baselines3/common/loop.py", "learn", 6)
    training.sample(("torch/optim/adam.py", "step", 9), library, times=20)
    assert training.iterations.read_ns is None


def test_a_variable_that_holds_no_int_is_not_a_count() -> None:
    training = Training(NANOGPT)
    training.sample(*STEP, times=10)
    assert training.iterations.read_ns is None
    training.sample(*STEP, iter_num=1 << 80)
    assert training.iterations.read_ns is None
