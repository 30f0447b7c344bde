"""When looks are taken, and how their rates keep within the CPU allowed."""

from __future__ import annotations

import random
from collections import Counter

from gpuwatch.sources.stacks.schedule import Agenda, CpuBudget, Jitter

SECOND = 1_000_000_000


def times(seconds: float, rate_hz: float = 100.0, seed: int = 0) -> list[int]:
    jitter = Jitter(rate_hz, 0, random.Random(seed))
    taken = []
    while jitter.due_ns < seconds * SECOND:
        taken.append(jitter.due_ns)
        jitter.advance(jitter.due_ns)
    return taken


def test_each_interval_has_one_look() -> None:
    looks = Counter(time // 10_000_000 for time in times(20))
    assert len(looks) == 2000
    assert set(looks.values()) == {1}


def test_looks_lock_to_no_period_of_the_training() -> None:
    # A tenth of each 20 ms step is at work: evenly spaced looks would always, or never, see it.
    at_work = sum(time % 20_000_000 < 2_000_000 for time in times(60))
    assert 0.085 < at_work / 6000 < 0.115


def test_the_same_seed_gives_the_same_looks() -> None:
    assert times(1, seed=3) == times(1, seed=3)
    assert times(1, seed=3) != times(1, seed=4)


def test_missed_looks_are_not_made_up_for() -> None:
    jitter = Jitter(100.0, 0, random.Random(0))
    late = jitter.due_ns + SECOND
    taken = []
    for _ in range(20):
        jitter.advance(late)
        taken.append(jitter.due_ns)
        late = jitter.due_ns
    assert taken[-1] - taken[0] > 150_000_000


def budget_after(share_at_full_rate: float, seconds: float = 20.0, limit: float = 0.05) -> CpuBudget:
    """A budget whose looks cost as much as their rate."""
    budget, cpu_ns = CpuBudget(limit), 0.0
    for tick in range(int(seconds * 4)):
        cpu_ns += share_at_full_rate * (budget.main_factor + budget.worker_factor) / 2 * SECOND / 4
        budget.note(tick * SECOND // 4, int(cpu_ns))
    return budget


def test_cheap_looks_keep_their_rates() -> None:
    budget = budget_after(0.03)
    assert (budget.main_factor, budget.worker_factor) == (1.0, 1.0)


def test_expensive_looks_are_taken_less_often() -> None:
    budget = budget_after(0.08)
    assert budget.share is not None
    assert budget.share <= 0.051
    assert budget.main_factor < 0.9


def test_one_expensive_moment_does_not_lower_the_rates() -> None:
    budget, cpu_ns = CpuBudget(0.05), 0
    for tick in range(40):
        cpu_ns += 60_000_000 if tick == 20 else 5_000_000  # 2%, and once 60 ms
        budget.note(tick * SECOND // 4, cpu_ns)
    assert budget.main_factor == 1.0


def test_the_training_thread_keeps_half_its_rate_while_workers_go_down_to_a_quarter() -> None:
    budget = budget_after(0.11)
    assert budget.main_factor == 0.5
    assert 0.25 <= budget.worker_factor < 0.5


def test_workers_are_looked_at_ever_less_before_the_training_thread_is_below_half() -> None:
    budget = budget_after(0.16)
    assert budget.main_factor == 0.5
    assert budget.worker_factor < 0.25


def test_attaching_to_workers_does_not_lower_the_rates() -> None:
    budget, cpu_ns = CpuBudget(0.05), 0
    for tick in range(80):
        cpu_ns += 5_000_000 + 7_000_000  # looks 2%, attaching 2.8%
        budget.attaching.spend(7_000_000)
        budget.note(tick * SECOND // 4, cpu_ns)
    assert budget.main_factor == 1.0


def test_beyond_that_all_rates_fall_further() -> None:
    budget = budget_after(0.6)
    assert budget.main_factor < 0.5
    assert budget.worker_factor < 0.25
    assert budget.share is not None
    assert budget.share <= 0.051


def test_rates_rise_again_when_looks_have_become_cheap() -> None:
    budget = budget_after(0.2)
    cpu_ns, start = 10**12, 100 * SECOND
    for tick in range(200):
        budget.note(start + tick * SECOND // 4, cpu_ns + tick * 1_000_000)
    assert (budget.main_factor, budget.worker_factor) == (1.0, 1.0)


def test_the_agenda_calls_in_order_and_again_when_asked() -> None:
    now = 0
    agenda = Agenda(lambda: now)
    called: list[str] = []

    def again(at: int) -> int | None:
        called.append("again")
        return at + 10

    def once(at: int) -> None:
        called.append("once")

    agenda.add(5, again)
    agenda.add(3, once)
    assert agenda.due_ns == 3
    now = 6
    agenda.run_due()
    assert called == ["once", "again"]
    assert agenda.due_ns == 16


def test_a_lower_limit_takes_hold_while_looks_go_on() -> None:
    budget, cpu_ns = CpuBudget(0.05), 0.0
    for tick in range(80):
        if tick == 40:
            assert budget.main_factor == 1.0
            budget.limit_share = 0.03
        cpu_ns += 0.04 * budget.main_factor * SECOND / 4
        budget.note(tick * SECOND // 4, int(cpu_ns))
    assert budget.share is not None
    assert budget.share <= 0.031
    assert 0.5 <= budget.main_factor < 1.0
