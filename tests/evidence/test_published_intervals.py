"""Nine of ten published steps of each class lie in their intervals, which are not wider than a factor of two."""

from __future__ import annotations

import held_out
import published_intervals
import published_speed
import published_steps
import pytest

from legroom.estimator.speed import roofline

needs_files = pytest.mark.skipif(not held_out.STEPS.exists(), reason=held_out.MISSING)
NINE_OF_TEN, WIDEST = 0.9, 2.0


@needs_files
def test_host_bound_published_steps_lie_in_their_intervals():
    found = []
    for each in held_out.steps():
        if "Llama" in each["model"] and not each["objective"].startswith(published_intervals.FORWARD_ALONE):
            tally, precision = published_steps.step_of(each)
            predicted = roofline.predict(tally, published_speed.gpu_of(each["board"]), precision)
            found.append(published_intervals.row("", predicted, float(each["seconds_per_step"])))
    assert {each.classes for each in found} == {("waits for the host",)}
    assert all(each.is_inside for each in found)


@needs_files
@pytest.mark.slow
def test_nine_of_ten_published_steps_of_each_class_lie_in_their_intervals():
    for name, (_, inside, width) in published_intervals.summary(published_intervals.rows()).items():
        assert inside >= NINE_OF_TEN and width <= WIDEST + 1e-9, name
