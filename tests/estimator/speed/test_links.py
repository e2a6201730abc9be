"""The seconds of collectives on one machine and on several, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from test_roofline import device, ideal, steps_of

from legroom.estimator.speed import links, roofline
from legroom.estimator.speed.links import BY_LINK, BY_MACHINE_LINK
from legroom.estimator.speed.operation_names import COLLECTIVE, ELEMENTWISE
from legroom.estimator.speed.operations import Operation, Tally

# Each A100 has 300 GB/s to the others of its machine and 32 GB/s to its host, and a machine 100 GB/s to the others, of
# which three quarters are taken.
TWO: dict[str, Any] = {"machines": 2, "machine_link_gb_per_second": 100}


def collective(name: str, gigabytes: float, *group: int) -> Operation:
    return Operation(name, COLLECTIVE, bytes=round(gigabytes * 1e9), shape=group)


def took(operation: Operation, num_processes: int = 16, reached=None, **gpu) -> tuple[float, str]:
    return links.collective_seconds(operation, device(**TWO | gpu), num_processes, reached or ideal())


@pytest.mark.parametrize(
    "operation,seconds,bound_by",
    [
        # DDP: a tree of two machines sends 16 GB each way through the whole network, at 92 % of 75 GB/s; a ring of 16
        # would send 2 * 15/16 of them.
        (collective("allreduce_", 16), 16 / 69, BY_MACHINE_LINK),
        (collective("allreduce_", 16, 16, 1), 16 / 69, BY_MACHINE_LINK),
        # FSDP's full_shard: 15/16.
        (collective("_allgather_base_", 16, 16, 1), 15 / 75, BY_MACHINE_LINK),
        # A group inside a machine, of tensor parallelism or of the hybrid strategies: 7/8 of 8 GB at 300 GB/s.
        (collective("_reduce_scatter_base_", 8, 8, 1), 7 / 300, BY_LINK),
        (collective("all_reduce", 8, 4, 1), 2 * 6 / 300, BY_LINK),
        # The same rank of both machines: 2 * 1/2 of 8 GB. Eight such groups share the network.
        (collective("allreduce_", 8, 2, 8), 8 / (75 / 8), BY_MACHINE_LINK),
        # Every fourth rank, two on a machine: a tree. Four such groups share the network.
        (collective("allreduce_", 8, 4, 4), 8 / (69 / 4), BY_MACHINE_LINK),
        (collective("allreduce_", 8, 1, 1), 0, BY_LINK),
        # All-to-all on one machine: 3/4 of 8 GB; on two, each of 8 ranks sends half of its 16 GB to the other machine.
        (collective("alltoall_base_", 8, 4, 1), 6 / 300, BY_LINK),
        (collective("all_to_all_single", 16, 16, 1), 8 * 8 / 75, BY_MACHINE_LINK),
    ],
)
def test_a_collective_takes_the_slowest_link_that_it_crosses(operation, seconds, bound_by):
    assert took(operation) == (pytest.approx(seconds), bound_by)


def test_groups_of_machines_share_the_network():
    four = {"machines": 4}  # of 8 ranks each; groups of 16 have two machines
    assert took(collective("_allgather_base_", 16, 16, 1), 32, **four) == (pytest.approx(15 / 75), BY_MACHINE_LINK)
    assert took(collective("allreduce_", 8, 2, 16), 32, **four) == (pytest.approx(8 / (75 / 8)), BY_MACHINE_LINK)


def test_a_fast_network_is_limited_by_the_gpus_own_links():
    whole = collective("_allgather_base_", 16)
    to_hosts = 8 * 32 * links.HOST_LINK  # less than 300
    assert took(whole, machine_link_gb_per_second=1000) == (pytest.approx(15 / to_hosts), BY_MACHINE_LINK)
    wide = {"machine_link_gb_per_second": 1000, "host_link_gb_per_second": 450}
    assert took(whole, **wide) == (pytest.approx(15 / 300), BY_LINK)
    alone = took(collective("_allgather_base_", 16), 2, machine_link_gb_per_second=1000)  # a GPU on each machine
    assert alone == (pytest.approx(8 / (32 * links.HOST_LINK)), BY_MACHINE_LINK)


def test_each_step_of_a_ring_takes_its_links_latency():
    """Of 15 steps of a ring through two machines of 8, one crosses the network; of an all-reduce, twice as many."""
    hops = {"bandwidth": 1.0, "start": 3e-4, "nvlink": 1e-5, "network": 1e-3}
    late = ideal(collective_steps={"simple": hops})
    assert took(collective("_allgather_base_", 0), reached=late)[0] == pytest.approx(3e-4 + 14e-5 + 1e-3)
    assert took(collective("_allgather_base_", 0, 8, 1), reached=late)[0] == pytest.approx(3e-4 + 7e-5)
    assert took(collective("allreduce_", 0, 2, 8), reached=late)[0] == pytest.approx(3e-4 + 2e-3)


def test_a_small_all_reduce_goes_through_trees_and_a_large_one_round_a_ring():
    """On 64 machines a tree is 6 deep and a ring 63 long, but its links carry less."""
    many = {"machines": 64, "reached": ideal(collective_steps={"simple": steps_of(1e-5)})}
    assert took(collective("allreduce_", 0), 512, **many)[0] == pytest.approx((14 + 12) * 1e-5)
    ring = 2 * 511 / 512 * 16 / 75 + 1022e-5
    assert took(collective("allreduce_", 16), 512, **many)[0] == pytest.approx(ring)
    gathered = took(collective("_allgather_base_", 0), 512, **many)[0]
    assert gathered == pytest.approx(511e-5), "trees add up, or hand round one tensor; they gather nothing"


def test_the_protocol_that_is_fastest_for_the_bytes_counts():
    both = ideal(collective_steps={"quick": steps_of(1e-6, bandwidth=0.5), "full": steps_of(1e-4)})
    assert took(collective("_allgather_base_", 0, 8, 1), reached=both)[0] == pytest.approx(7e-6)
    assert took(collective("_allgather_base_", 80, 8, 1), reached=both)[0] == pytest.approx(70 / 300 + 7e-4)


def test_switches_add_up_an_all_reduce_of_most_of_a_machine():
    fast = ideal(switch=1.5)
    assert took(collective("allreduce_", 8, 8, 1), reached=fast)[0] == pytest.approx(2 * 7 / 450)
    assert took(collective("allreduce_", 8, 4, 1), reached=fast)[0] == pytest.approx(2 * 6 / 300), "4 go round a ring"
    assert took(collective("_allgather_base_", 8, 8, 1), reached=fast)[0] == pytest.approx(7 / 300)
    assert took(collective("allreduce_", 16), reached=fast)[0] == pytest.approx(16 / 69)


def predicted(num_processes=16, *operations: Operation, **gpu) -> roofline.Prediction:
    tally = Tally()
    for operation in (Operation("add", ELEMENTWISE, bytes=2039 * 10**6), *operations):
        tally.put(operation, "backward")
    reached = ideal(error=dict.fromkeys(("fp32", "tf32", "fp16", "bf16"), 0.1))
    return roofline.predict(tally, device(**gpu), "fp32", num_processes, reached)


def test_a_step_that_waits_for_the_network_says_so_and_has_its_interval():
    """16 GB at 75 GB/s, or at 94 and at 50, the last of one collective beside 1 ms of computation."""
    found = predicted(16, collective("_allgather_base_", 32), **TWO)
    assert (found.bound_by, found.link_seconds) == (BY_MACHINE_LINK, pytest.approx(0.4))
    assert found.machine_link_seconds == found.link_seconds
    computing = [found.step_seconds - 30 / 75, found.low_seconds - 30 / 94, found.high_seconds - 30 / 50]
    assert computing == pytest.approx([1e-3, 0.9e-3, 1.1e-3])
    (note,) = found.notes
    assert "2 machines" in note and "75% of 100 GB/s" in note and "50% to 94%" in note and "400 ms" in note
    mixed = predicted(16, collective("allreduce_", 1, 2, 8), collective("_allgather_base_", 80, 8, 1), **TWO)
    assert (mixed.bound_by, mixed.link_seconds) == (BY_LINK, pytest.approx(1 / (75 / 8) + 70 / 300))
    assert mixed.machine_link_seconds == pytest.approx(1 / (75 / 8))


def test_more_ranks_than_a_machine_holds_deserve_a_note():
    bucket = collective("allreduce_", 0)
    assert not predicted(8, bucket).notes
    (note,) = predicted(64, bucket).notes
    assert "64 processes on one link" in note and "gpu.machines=" in note
    assert len(predicted(64, bucket, **TWO).notes) == 2 and len(predicted(16, bucket, **TWO).notes) == 1


def test_a_step_waits_for_an_all_to_all():
    """Any other collective runs beside the computation."""
    product = Operation("add", ELEMENTWISE, bytes=2039 * 10**7)
    tally = Tally()
    tally.counts["forward"] = {
        product: 1,
        collective("alltoall_base_", 8, 4, 1): 2,
        collective("allreduce_", 4, 4, 1): 1,
    }
    found = roofline.predict(tally, device(), "fp32", 4, reached=ideal())
    alone = roofline.device_seconds(product, device(), "fp32", ideal())
    assert found.device_seconds == pytest.approx(alone + 2 * 6 / 300)
    assert (found.link_seconds, found.collectives) == (pytest.approx(2 * 3 / 300), 1)
    assert found.bound_by == BY_LINK, "of what the device takes, most is waiting"


def test_errors_of_links_and_network_differ():
    inside = links.Transfers(1, seconds=3.0)
    assert (inside.low_seconds(0.25), inside.high_seconds(0.25)) == (2.25, 3.75)
    network = links.Transfers(1, seconds=3.0, machine_seconds=3.0)
    assert network.low_seconds(0.25) == network.low_seconds(0.5) < 3 < network.high_seconds(0.25)
