from __future__ import annotations

import pytest

from gpuwatch.samples import GpuHealth, GpuLost, NvmlState, XidEvent
from gpuwatch.timeline.timeline import Timeline
from tests.unit.sample_builder import (
    GPU,
    at,
    ended,
    gpu_at,
    gpu_facts,
    loader,
    phase,
    poll,
    polls,
    ring,
    run_facts,
    scene,
    steps,
    timeline,
)

MINUTE = [second + 1.0 for second in range(60)]


def ringing(seconds: int = 60, spacing: float = 0.25, period: int = 8) -> list[object]:
    """Polls that drain a ring of a square wave: half of the values 90, half 10."""
    per_second = round(1 / spacing)
    return [
        poll(
            second + 1.0,
            utilization_percent=50.0,
            utilization_ring=ring(
                [90.0 if (second * per_second + place) % period < period / 2 else 10.0 for place in range(per_second)],
                second + 1.0,
                spacing,
            ),
        )
        for second in range(seconds)
    ]


def test_ring_shows_the_swings_that_polls_average_away() -> None:
    history = timeline(gpu_facts(), ringing())
    utilization = gpu_at(history, 60).utilization
    assert utilization is not None
    assert utilization.count == 240
    assert utilization.sigma > 35
    assert (utilization.p5, utilization.p95) == (10.0, 90.0)


def test_polls_stand_in_where_there_is_no_ring() -> None:
    history = timeline(gpu_facts(), polls(MINUTE, utilization_percent=50.0))
    utilization = gpu_at(history, 60).utilization
    assert utilization is not None
    assert (utilization.count, utilization.mean) == (60, 50.0)


def test_polls_stand_in_where_the_ring_ran_dry() -> None:
    wet = poll(1.0, utilization_percent=80.0, utilization_ring=ring([80.0, 80.0], 1.0, 0.5))
    history = timeline(gpu_facts(), wet, polls(MINUTE[1:], utilization_percent=0.0))
    utilization = gpu_at(history, 60).utilization
    assert utilization is not None
    assert utilization.count == 60


def test_ring_values_drained_twice_count_once() -> None:
    stamps = ring([10.0, 20.0, 30.0, 40.0], 2.0, 0.5)
    history = timeline(
        gpu_facts(),
        poll(1.6, utilization_percent=1.0, utilization_ring=stamps[:3]),
        poll(2.1, utilization_percent=1.0, utilization_ring=stamps),
    )
    utilization = gpu_at(history, 3).utilization
    assert utilization is not None
    assert (utilization.count, utilization.mean) == (4, 25.0)


def test_sensor_window_is_the_spacing_of_changed_values() -> None:
    values = [float(place // 2) for place in range(8)]  # each value is repeated once: the sensor is half as fast
    drained = [
        poll(second + 1.0, utilization_ring=ring([second * 4 + value for value in values], second + 1.0, 0.125))
        for second in range(10)
    ]
    assert gpu_at(timeline(gpu_facts(), drained), 10).sensor_window_seconds == pytest.approx(0.25)
    assert gpu_at(timeline(gpu_facts(), polls(MINUTE)), 60).sensor_window_seconds is None


def test_samples_that_a_phase_overlaps_do_not_count_as_training() -> None:
    history = timeline(
        gpu_facts(),
        run_facts(gpu_uuids=(GPU,)),
        steps(700, start=-10.0),
        phase("eval", 20.0, 30.5),
        polls(MINUTE, utilization_percent=50.0),
    )
    window = gpu_at(history, 60)
    assert window.utilization is not None and window.train_utilization is not None
    assert window.utilization.count == 60
    times = {time for time, _ in window.train_utilization_series}
    assert at(20) in times  # it looks back at training only
    assert at(21) not in times
    assert at(31) not in times  # its sensor's second still holds evaluation
    assert at(32) in times
    assert window.train_utilization.count == 60 - 11


def test_narrow_sensor_masks_less_after_a_phase() -> None:
    history = timeline(
        gpu_facts(),
        run_facts(gpu_uuids=(GPU,)),
        steps(500, start=-10.0),
        phase("eval", 20.0, 30.0),
        ringing(60, 0.25, 2),
    )
    times = [time for time, _ in gpu_at(history, 60).train_utilization_series]
    assert min(time for time in times if time > at(20)) == at(30.25)


def test_open_phase_masks_up_to_now() -> None:
    history = timeline(
        gpu_facts(),
        run_facts(gpu_uuids=(GPU,)),
        steps(700, start=-10.0),
        phase("checkpoint", 40.0, None),
        polls(MINUTE, utilization_percent=50.0),
    )
    assert max(time for time, _ in gpu_at(history, 60).train_utilization_series) == at(40)


def test_collections_do_not_mask() -> None:
    history = timeline(
        gpu_facts(),
        run_facts(gpu_uuids=(GPU,)),
        steps(700, start=-10.0),
        [phase("gc", second, second + 0.01) for second in range(60)],
        polls(MINUTE, utilization_percent=50.0),
    )
    assert len(gpu_at(history, 60).train_utilization_series) == 60


def test_nothing_counts_as_training_before_the_run_is_warm_or_after_it_ended() -> None:
    cold = timeline(gpu_facts(), run_facts(gpu_uuids=(GPU,)), steps(5), polls(MINUTE, utilization_percent=50.0))
    assert gpu_at(cold, 60).train_utilization is None
    over = timeline(
        gpu_facts(),
        run_facts(gpu_uuids=(GPU,)),
        steps(300, start=0.0),
        ended(30.0),
        polls(MINUTE, utilization_percent=50.0),
    )
    times = [time for time, _ in gpu_at(over, 60).train_utilization_series]
    assert (min(times), max(times)) == (at(2), at(30))  # warm at 1 s, and the sensor looks back over one more


def test_gpu_without_a_run_trains_for_all_that_is_known() -> None:
    window = gpu_at(timeline(gpu_facts(), polls(MINUTE, utilization_percent=50.0)), 60)
    assert window.train_utilization == window.utilization


def test_energy_is_what_the_counter_gained_in_the_window() -> None:
    readings = [poll(second, energy_joules=100.0 * second) for second in range(1, 101)]
    assert gpu_at(timeline(gpu_facts(), readings), 100).energy_joules == pytest.approx(6_000.0)


def test_energy_survives_a_counter_reset() -> None:
    readings = [
        poll(second, energy_joules=100.0 * second if second < 30 else 100.0 * (second - 30)) for second in MINUTE
    ]
    history = timeline(gpu_facts(), readings)
    window = gpu_at(history, 60)
    assert window.energy_joules == pytest.approx(5_800.0)
    assert scene(history, 60).quality.counter_resets == 1


def test_energy_of_an_hour_reaches_beyond_the_raw_polls() -> None:
    readings = [poll(second, energy_joules=100.0 * second) for second in range(1, 3_601)]
    assert gpu_at(timeline(gpu_facts(), readings), 3_600, 3_600).energy_joules == pytest.approx(360_000.0, rel=0.02)


def test_energy_that_was_never_read_is_unknown() -> None:
    assert gpu_at(timeline(gpu_facts(), polls(MINUTE)), 60).energy_joules is None


def test_throttling_is_read_from_the_counter_where_there_is_one() -> None:
    readings = [
        poll(second, throttled_sw_thermal_ns=round(0.25e9 * second), event_reasons=0x4 if second % 2 else 0)
        for second in MINUTE
    ]
    window = gpu_at(timeline(gpu_facts(), readings), 60)
    assert window.throttle_shares["sw-thermal"] == pytest.approx(0.25)
    assert window.throttle_shares["power"] == pytest.approx(0.5)  # no counter: by the mask
    assert window.reason_bit_shares == {0x4: 0.5}


def test_throttling_is_unknown_without_counter_and_mask() -> None:
    window = gpu_at(timeline(gpu_facts(), polls(MINUTE)), 60)
    assert window.throttle_shares == {}
    assert window.reason_bit_shares == {}


def test_episodes_of_a_reason_bit_are_counted_once_each() -> None:
    masks = [0x80 if second % 20 < 5 else 0 for second in range(1, 61)]
    readings = [poll(second + 1.0, event_reasons=mask) for second, mask in enumerate(masks)]
    assert gpu_at(timeline(gpu_facts(), readings), 61).reason_bit_events == {0x80: 4}


def test_cool_clock_is_the_median_under_load_while_nothing_slows_it() -> None:
    cool = polls(range(1, 21), sm_clock_mhz=1_980.0, event_reasons=0, utilization_percent=98.0)
    hot = polls(range(21, 41), sm_clock_mhz=1_300.0, event_reasons=0x20, utilization_percent=98.0)
    idle = polls(range(41, 80), sm_clock_mhz=345.0, event_reasons=0, utilization_percent=0.0)
    assert gpu_at(timeline(gpu_facts(), cool, hot, idle), 80).sm_clock_cool_mhz == 1_980.0


def test_impossible_readings_are_dropped_and_counted() -> None:
    history = timeline(
        gpu_facts(),
        poll(1, temperature_celsius=60.0, utilization_percent=50.0),
        poll(2, temperature_celsius=9223372036854775794.0, utilization_percent=50.0),
    )
    window = gpu_at(history, 3)
    assert window.temperature_celsius is not None and window.latest is not None
    assert (window.temperature_celsius.count, window.temperature_celsius.max) == (1, 60.0)
    assert window.latest.temperature_celsius is None
    assert "temperature_celsius" in window.unavailable
    assert scene(history, 3).quality.dropped_values == 1


def test_impossible_ring_values_are_dropped() -> None:
    history = timeline(gpu_facts(), poll(1, utilization_ring=ring([50.0, 4e9, 50.0], 1.0, 0.25)))
    utilization = gpu_at(history, 2).utilization
    assert utilization is not None
    assert (utilization.count, utilization.max) == (2, 50.0)


def test_silent_gpu_is_stale_with_its_age_and_why() -> None:
    history = timeline(gpu_facts(), polls(range(1, 11), utilization_percent=50.0))
    assert gpu_at(history, 12).status == "live"
    silent = gpu_at(history, 15)
    assert (silent.status, silent.status_since_ns, silent.status_reason) == ("stale", at(10), "silent for 5 s")
    history.add(NvmlState(at(11.5), "stale", reason="the driver does not answer"))
    stale = gpu_at(history, 11.6)
    assert (stale.status, stale.status_reason) == ("stale", "the driver does not answer")


def test_slow_polling_is_not_staleness() -> None:
    history = timeline(gpu_facts(), polls([5, 10], utilization_percent=50.0), interval_seconds=5.0)
    assert gpu_at(history, 15).status == "live"
    assert gpu_at(history, 19).status == "stale"


def test_lost_gpu_says_since_when_until_it_answers_again() -> None:
    history = timeline(
        gpu_facts(), polls([1, 2]), GpuLost(at(3), GPU, "fallen off the bus"), GpuLost(at(4), GPU, "again")
    )
    lost = gpu_at(history, 100)
    assert (lost.status, lost.status_since_ns, lost.status_reason) == ("lost", at(3), "fallen off the bus")
    history.add(poll(101))
    assert gpu_at(history, 101).status == "live"


def test_lost_gpu_has_no_figures_in_a_later_window() -> None:
    history = timeline(gpu_facts(), polls([1, 2], utilization_percent=50.0), GpuLost(at(3), GPU, "gone"))
    assert gpu_at(history, 200).utilization is None


def test_repeated_poll_is_taken_once() -> None:
    history = timeline(gpu_facts(), poll(1, utilization_percent=10.0), poll(1, utilization_percent=90.0))
    utilization = gpu_at(history, 2).utilization
    assert utilization is not None
    assert (utilization.count, utilization.mean) == (1, 10.0)


def test_window_of_an_hour_uses_the_seconds_behind_the_raw_polls() -> None:
    readings = [poll(second, utilization_percent=20.0 if second < 1_800 else 80.0) for second in range(1, 3_601)]
    utilization = gpu_at(timeline(gpu_facts(), readings), 3_600, 3_600).utilization
    assert utilization is not None
    assert utilization.mean == pytest.approx(50.0, abs=0.1)


def test_reasons_of_all_lanes_are_merged() -> None:
    history = timeline(
        gpu_facts(unavailable={"mig": "off"}),
        poll(1, unavailable={"utilization_percent": "not supported by this GPU"}),
        GpuHealth(at(1), GPU, power_limit_watts=650.0, unavailable={"ecc_uncorrected_volatile": "no ECC"}),
    )
    window = gpu_at(history, 2)
    assert set(window.unavailable) == {"mig", "utilization_percent", "ecc_uncorrected_volatile"}
    assert window.power_limit_watts == 650.0


def test_xid_without_a_gpu_belongs_to_the_only_one() -> None:
    event = XidEvent(at(1), None, 79)
    alone = timeline(gpu_facts(), poll(1), event)
    assert gpu_at(alone, 2).xids == (event,)
    two = scene(timeline(gpu_facts(), gpu_facts(1), event), 2)
    assert [gpu.xids for gpu in two.gpus] == [(), ()]
    assert two.xids == (event,)


def test_gpus_keep_their_history_when_their_order_changes() -> None:
    history = timeline(gpu_facts(0), gpu_facts(1), poll(1, "GPU-1", utilization_percent=70.0))
    history.extend([gpu_facts(0, uuid="GPU-1"), gpu_facts(1, uuid="GPU-0")])
    first, second = scene(history, 2).gpus
    assert (first.facts.uuid, second.facts.uuid) == ("GPU-1", "GPU-0")
    assert first.utilization is not None and second.utilization is None


def test_sample_of_an_unintroduced_gpu_shows_nothing_made_up() -> None:
    assert scene(timeline(poll(1, utilization_percent=50.0)), 2).gpus == ()


def test_pcie_rates_come_from_byte_counters() -> None:
    readings = [poll(second, pcie_rx_bytes=10_000 * second, pcie_tx_bytes=None) for second in range(1, 61)]
    window = gpu_at(timeline(gpu_facts(), readings), 60)
    assert window.pcie_rx_bytes_per_second == pytest.approx(10_000)
    assert window.pcie_tx_bytes_per_second is None


def test_scene_says_how_short_its_window_is() -> None:
    history: Timeline = timeline(gpu_facts(), polls([1, 2, 3]), run_facts(loaders=(loader(),)))
    assert scene(history, 10).window_seconds == 10.0
    assert scene(history, 100).window_seconds == 60.0


def healths(*readings: dict[str, int], spacing: float = 30.0) -> list[GpuHealth]:
    return [GpuHealth(time_ns=at(spacing * place), uuid=GPU, **fields) for place, fields in enumerate(readings)]


def test_link_errors_are_those_of_the_newest_minute() -> None:
    counted = healths(
        {"pcie_replays": 0, "nvlink_crc_errors": 0, "nvlink_replays": 9},
        {"pcie_replays": 100, "nvlink_crc_errors": 9_000, "nvlink_replays": 9},
        {"pcie_replays": 110, "nvlink_crc_errors": 9_000, "nvlink_replays": 9},
        {"pcie_replays": 120, "nvlink_crc_errors": 15_000, "nvlink_replays": 10},
    )
    links = gpu_at(timeline(gpu_facts(), counted, poll(90)), 90).links
    assert links is not None
    assert (links.seconds, links.pcie_replays_per_minute) == (60.0, 20.0)
    assert (links.nvlink_crc_errors_per_second, links.nvlink_replays) == (100.0, 1)
    assert links.nvlink_recoveries is None and links.nvlink_lost is None


def test_link_errors_are_unknown_before_a_minute_was_watched() -> None:
    history = timeline(gpu_facts(), healths({"pcie_replays": 0}, {"pcie_replays": 500}), poll(30))
    assert gpu_at(history, 30).links is None
    assert gpu_at(timeline(gpu_facts(), poll(30)), 30).links is None


def test_a_driver_that_restarts_its_counters_makes_no_errors() -> None:
    counted = healths({"nvlink_replays": 700}, {"nvlink_replays": 0}, {"nvlink_replays": 0})
    links = gpu_at(timeline(gpu_facts(), counted, poll(60)), 60).links
    assert links is not None and links.nvlink_replays == 0


def test_a_link_that_was_up_and_is_not_any_more_is_lost() -> None:
    counted = healths({"nvlink_active": 18}, {"nvlink_active": 16})
    links = gpu_at(timeline(gpu_facts(), counted, poll(30)), 30).links
    assert links is not None and links.nvlink_lost == 2
    again = healths({"nvlink_active": 18}, {"nvlink_active": 16}, {"nvlink_active": 18})
    links = gpu_at(timeline(gpu_facts(), again, poll(60)), 60).links
    assert links is not None and links.nvlink_lost == 0


def test_slow_steps_stretch_the_utilization_in_training_as_they_do_the_waits() -> None:
    """Steps of 7 s: thirty of them are judged, over 210 s, and the utilization with them; that of the minute stays."""
    seconds = [second + 1.0 for second in range(300)]
    busy = [poll(second, utilization_percent=80.0 if second <= 240 else 0.0) for second in seconds]
    history = timeline(gpu_facts(), run_facts(gpu_uuids=(GPU,)), steps(42, period=7.0), busy)
    window = gpu_at(history, 300)
    assert window.utilization is not None and window.utilization.mean == 0.0
    assert window.train_utilization is not None
    assert window.train_utilization.mean == pytest.approx(80.0 * 150 / 210, rel=0.05)
