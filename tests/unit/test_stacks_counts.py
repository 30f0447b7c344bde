"""Batches and iterations of one loop, and how often the reader is asked about loops."""

from __future__ import annotations

from dataclasses import replace

from stack_samples import loader_state, stack

from gpuwatch.reader.loaders import LoaderState
from gpuwatch.reader.stacks import Frame, Stack
from gpuwatch.sources.stacks.classify import Reading
from gpuwatch.sources.stacks.loops import CONFIRM_NS, BatchCounter, Iterations, SteadyCounters, first_round
from tests.unit.stack_samples import MAIN, FakeText, Place, classifier, frames

LOOK_NS = 10_000_000


class Looks:
    """Looks at a counter, 10 ms apart."""

    def __init__(self) -> None:
        self.counter = BatchCounter()
        self.now_ns = 0

    def see(self, *counts: int, iterator: int = 1, length: int | None = None, workers: int = 0) -> None:
        for count in counts:
            self.now_ns += LOOK_NS
            state = loader_state(count, iterator=iterator, length=length, workers=workers)
            self.counter.see(state, self.now_ns)


def test_counting_begins_with_the_first_look() -> None:
    looks = Looks()
    looks.see(500, 501, 503)
    assert (looks.counter.batches, looks.counter.epochs, looks.counter.exact) == (3, 0, True)


def test_a_new_iterator_goes_on_from_the_old_one() -> None:
    looks = Looks()
    looks.see(0, 5, 9)
    looks.see(1, 4, iterator=2)
    assert (looks.counter.batches, looks.counter.epochs) == (13, 1)


def test_the_last_batches_of_an_epoch_are_added_where_its_length_is_known() -> None:
    looks = Looks()
    looks.see(*range(99), length=100)
    looks.see(0, 1, iterator=2, length=100)
    assert looks.counter.batches == 101


def test_the_length_of_earlier_epochs_serves_where_the_loader_has_none() -> None:
    looks = Looks()
    looks.see(*range(101))
    looks.see(*range(100), iterator=2)
    looks.see(0, iterator=3)
    assert looks.counter.batches == 200


def test_a_persistent_iterator_that_starts_again_is_a_new_epoch() -> None:
    looks = Looks()
    looks.see(*range(50), length=50)
    looks.see(0, 1, length=50)
    assert (looks.counter.batches, looks.counter.epochs) == (51, 1)


def test_two_iterators_that_are_read_in_turn_are_each_counted_once() -> None:
    looks = Looks()
    for number in range(40, 60):
        looks.see(number, iterator=1, length=100)
        looks.see(number + 500, iterator=2, length=1000)
    assert (looks.counter.batches, looks.counter.epochs) == (19 + 540 + 19, 0)


def test_an_iterator_that_is_returned_to_before_it_moved_on_adds_nothing() -> None:
    looks = Looks()
    looks.see(0, 5)
    looks.see(0, 1, iterator=2)
    looks.see(5, 6)
    assert looks.counter.batches == 5 + 1 + 1


def test_an_iterator_made_at_the_address_of_an_ended_one_starts_over() -> None:
    looks = Looks()
    looks.see(*range(51), length=50)
    looks.see(*range(51), iterator=2, length=50)
    looks.see(1, 50, iterator=1, length=50)
    assert (looks.counter.batches, looks.counter.epochs) == (150, 2)


def test_iterators_are_remembered_up_to_a_bound() -> None:
    looks = Looks()
    for number in range(100):
        looks.see(1, 2, iterator=number)
    assert looks.counter.batches == 1 + 2 * 99
    assert len(looks.counter._left) < 10


def test_batches_that_could_not_have_passed_in_the_time_are_not_added() -> None:
    looks = Looks()
    looks.see(*range(50), length=1000)  # the loop was left by a break
    looks.see(0, iterator=2, length=1000)
    assert looks.counter.batches == 49


def test_entries_into_next_are_counted_where_no_counter_can_be_read() -> None:
    counter = BatchCounter()
    for waits in (True, True, False, True, False, False, True):
        counter.see_wait(waits)
    assert (counter.batches, counter.exact) == (3, False)


def test_a_loader_rebuilt_for_an_epoch_continues_the_count() -> None:
    first, second = Looks(), Looks()
    first.see(*range(100), length=100)
    second.now_ns = first.now_ns
    second.see(2, 3, iterator=9, length=100)
    second.counter.go_on_from(first.counter, 100)
    assert (second.counter.batches, second.counter.epochs) == (103, 1)


def test_the_first_batch_of_each_worker_may_wait_for_its_start() -> None:
    rounds = [first_round(loader_state(0, length=length, workers=4)) for length in (None, 100, 6, 1)]
    assert rounds == [4, 4, 3, 1]
    assert first_round(loader_state(0, workers=0)) == 0


TRAIN, EVALUATE = Reading("forward", None, around=1), Reading("forward", None, around=2)
STACK = stack(("/app/train.py", "train", 4), ("/app/train.py", "<module>", 9))


class FakeCounters:
    """A reader whose answer is set by hand."""

    def __init__(self) -> None:
        self.now: LoaderState | None = loader_state(0, 0)
        self.asked = self.counted = 0

    def state(self, stack: Stack) -> LoaderState | None:
        self.asked += 1
        return self.now

    def recheck(self, state: LoaderState) -> int | None:
        self.counted += 1
        return self.now.batches_yielded if self.now is not None and self.now.iterator == state.iterator else None


def test_a_loop_is_asked_for_ten_times_a_second_and_its_count_twenty_times() -> None:
    counters = FakeCounters()
    steady = SteadyCounters(counters)
    for number in range(100):
        counters.now = loader_state(number, 0)
        state = steady.state(STACK, TRAIN, number * LOOK_NS)
        assert state is not None
        assert number - 5 <= state.batches_yielded <= number
    assert counters.asked <= 11
    assert counters.asked + counters.counted <= 21


def test_other_lines_are_asked_for_at_once_and_known_lines_again_after_the_loop_changed() -> None:
    counters = FakeCounters()
    steady = SteadyCounters(counters)
    training = steady.state(STACK, TRAIN, LOOK_NS)
    counters.now = loader_state(3, 0, iterator=2)
    evaluation = steady.state(STACK, EVALUATE, 2 * LOOK_NS)
    counters.now = training
    assert evaluation is not None
    assert evaluation.iterator == 2
    assert steady.state(STACK, TRAIN, 3 * LOOK_NS) == training


def test_a_loop_over_another_loader_on_the_same_lines_is_reported_soon() -> None:
    counters = FakeCounters()
    steady = SteadyCounters(counters)
    steady.state(STACK, TRAIN, 0)
    counters.now = loader_state(3, 0, iterator=2)
    found = steady.state(STACK, TRAIN, CONFIRM_NS)
    assert found is not None
    assert found.iterator == 2


def test_after_iter_the_new_iterator_is_recognized_by_the_next_look() -> None:
    counters = FakeCounters()
    steady = SteadyCounters(counters)
    steady.state(STACK, TRAIN, 0)
    assert steady.state(STACK, replace(TRAIN, phase="start"), LOOK_NS) is None
    counters.now = loader_state(0, 0, iterator=2)
    found = steady.state(STACK, TRAIN, 2 * LOOK_NS)
    assert found is not None
    assert found.iterator == 2


def test_the_frame_of_the_loop_is_recognized_by_its_distance_from_the_root() -> None:
    steady = SteadyCounters(FakeCounters())
    steady.state(STACK, TRAIN, 0)
    deeper = Stack(STACK.thread, STACK.is_main, (STACK.frames[0], *STACK.frames))
    found = steady.state(deeper, TRAIN, LOOK_NS)
    assert found is not None
    assert found.frame == 1


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
        is_own = frame.code.file == MAIN or name == "self.num_timesteps"
        return self.values.get(name) if is_own else None

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


LEARN = ("stable_baselines3/common/on_policy_algorithm.py", "learn", 330)


def test_a_framework_that_counts_in_a_variable_of_its_own_is_counted_by_that() -> None:
    training = Training("for round in range(9):\n  f()\n\n\n\n  model.learn(10_000)\n")
    training.values["round"] = 3
    script = (MAIN, "<module>", 6)
    training.values["self.num_timesteps"] = 2048
    training.sample(("torch/optim/adam.py", "step", 9), ("stable_baselines3/ppo/ppo.py", "train", 280), LEARN, script)
    training.sample(("gymnasium/core.py", "step", 9), LEARN, script, times=5)
    training.sample(LEARN, script, **{"self.num_timesteps": 4000})
    assert training.counted == 1952
    training.sample(LEARN, script, **{"self.num_timesteps": 100})
    assert training.counted >= 2052


def test_only_its_own_loop_tells_its_count() -> None:
    training = Training("model.learn(10_000)\n")
    training.values["self.num_timesteps"] = 2048
    training.sample(("stable_baselines3/common/evaluation.py", "learn", 9), (MAIN, "<module>", 1), times=5)
    assert training.iterations.read_ns is None


def test_a_variable_that_holds_no_int_is_not_a_count() -> None:
    training = Training(NANOGPT)
    training.sample(*STEP, times=10)
    assert training.iterations.read_ns is None
    training.sample(*STEP, iter_num=1 << 80)
    assert training.iterations.read_ns is None
