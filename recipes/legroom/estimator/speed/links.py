"""The seconds on links: of collectives by rings and trees, as NCCL has them, and of copies between a GPU and its host.

A collective takes the slowest link that it crosses. Ranks are numbered machine by machine. Those of one machine send
over the GPUs' own link, and those of several over the network as well, whose rate is that of a machine: the groups that
cross between machines at the same time share it. A collective's kernel takes some of the multiprocessors from what is
computed at the same time.
"""

import math
from dataclasses import dataclass

from legroom.config import Gpu
from legroom.estimator.speed.efficiencies import Efficiencies
from legroom.estimator.speed.operation_names import COLLECTIVE, HOST_COPY
from legroom.estimator.speed.operations import AWAITED_COLLECTIVES, Operation, Tally
from legroom.machine import gpu_specs

GPUS_PER_MACHINE = 8
BY_LINK, BY_MACHINE_LINK = "link", "machine link"  # what a collective is bound by
# Of the bandwidth to the host, and in the best and the worst case: nvbandwidth has 0.8 to 0.87 of the sheet in both
# directions (A100, H100, H200), and 0.2 from the device on an A100 machine.
HOST_LINK, HOST_LINK_BEST, HOST_LINK_WORST = 0.82, 0.87, 0.2
# Of a machine's network: assumed, as inside a machine; and in the best and the worst case. An all-reduce of 16 GiB on 4
# machines of 8 B200 has 377 GB/s (ml-engineering, network/benchmarks), where such machines have 400; of 1 GiB on 4 of 8
# A100 30 of 50 (NVIDIA/nccl issue 527), and on 8 to 32 machines of 8 V100 half of 12.5 (issue 235).
MACHINE_LINK, MACHINE_LINK_BEST, MACHINE_LINK_WORST = 0.75, 0.94, 0.5
# Of the sheet's sixteen lanes between GeForce cards: boards often have eight or four for the second, and without
# peer-to-peer what is sent goes through the host's memory. Two RTX 3090 with FSDP and LoRA had 339 tokens/s a GPU where
# sixteen lanes make 1,040.
CONSUMER, FEWEST_LANES = "GeForce", 4 / 16
# Ranks of a machine from which its switches add up what an all-reduce sends (NVLink SHARP): 5 on an H200, 6 on a B200
# (ml-engineering, network/README.md).
SWITCH_RANKS = 5
TREE = 0.92  # of a ring's bandwidth (NCCL, src/graph/tuning.cc)
NETWORK = "network"  # key of `Efficiencies.collective_steps`, beside the kinds of a GPU's link


@dataclass(frozen=True)
class Transfers:
    """The collectives of a step: their number and their seconds, of which machine_seconds are bound by the network.

    taken_seconds: the time of the whole device that their kernels take from others, by the multiprocessors that they
    run on.
    """

    collectives: int = 0
    seconds: float = 0.0
    machine_seconds: float = 0.0
    taken_seconds: float = 0.0
    slowest: float = 1.0  # the share of the link inside a machine that there may be

    def low_seconds(self, error: float) -> float:
        """The seconds in the best case. error: the share by which links inside a machine may be off."""
        inside = self.seconds - self.machine_seconds
        return inside * (1 - error) + self.machine_seconds * MACHINE_LINK / MACHINE_LINK_BEST

    def high_seconds(self, error: float) -> float:
        """The seconds in the worst case."""
        inside = self.seconds - self.machine_seconds
        return inside * (1 + error) / self.slowest + self.machine_seconds * MACHINE_LINK / MACHINE_LINK_WORST


def transfers(tally: Tally, gpu: Gpu, num_processes: int, reached: Efficiencies, awaited: bool = False) -> Transfers:
    """The collectives of a tally that run beside the computation, or the `awaited` ones, which it waits for.

    num_processes: ranks of all machines, which exchange over their links. Where nothing is computed meanwhile, they
    are as a single collective, which overlaps with nothing.
    """
    count = 0
    seconds = 0.0
    machine_seconds = 0.0
    taken_seconds = 0.0
    for operation, times in tally.operations():
        if operation.kind != COLLECTIVE or awaited != is_awaited(operation, tally):
            continue
        each_seconds, bound_by = collective_seconds(operation, gpu, num_processes, reached)
        count += times
        seconds += times * each_seconds
        if bound_by == BY_MACHINE_LINK:
            machine_seconds += times * each_seconds
            blocks = reached.collective_blocks[NETWORK]
        else:
            blocks = reached.collective_blocks[gpu.link]
        taken_seconds += times * each_seconds * min(1.0, blocks / gpu.sm_count)
    if tally.waits:
        count = 1
    slowest = FEWEST_LANES if lanes_are_assumed(gpu) else 1.0
    return Transfers(count, seconds, machine_seconds, taken_seconds, slowest)


def lanes_are_assumed(gpu: Gpu) -> bool:
    """Whether consumer cards are linked by the slots of a board, of which only the sheet's rate is known."""
    if gpu.link != "pcie" or CONSUMER not in (gpu.device_name or ""):
        return False
    card = gpu_specs.find(gpu.device_name, gpu.memory_bytes)
    is_typed = card is not None and card["link_gb_per_second"] != gpu.link_gb_per_second
    return not is_typed


def is_awaited(operation: Operation, tally: Tally) -> bool:
    """Whether the step waits for a collective, whose result the next operation needs: an all-to-all, and one between
    the ranks that split the matrices of a layer."""
    return is_all_to_all(operation) or operation.shape in tally.awaited_groups


def is_all_to_all(operation: Operation) -> bool:
    return any(part in operation.name for part in AWAITED_COLLECTIVES)


def collective_seconds(operation: Operation, gpu: Gpu, num_processes: int, reached: Efficiencies) -> tuple[float, str]:
    """(seconds of a collective, the link that bounds it), by the ring algorithm (Patarasuk and Yuan 2009), and of an
    all-reduce by trees where those are faster.

    n ranks take n - 1 steps, each of which sends an nth of the tensor; all-reduce takes twice as many. In an all-to-all
    each rank of a machine sends other numbers to each rank of the others, all through the machine's network. Of NCCL's
    protocols, which trade latency for bandwidth, the fastest counts.

    operation.bytes: of the whole tensor, as each rank has it before or after. operation.shape: (ranks, stride) where
    not all of num_processes take part.
    """
    ranks, stride = operation.shape or (num_processes, 1)
    if ranks == 1:
        return 0.0, BY_LINK
    is_all_reduce = "allreduce" in operation.name or "all_reduce" in operation.name
    passes = 2 if is_all_reduce else 1
    members = _members(ranks, stride, gpu, num_processes)
    machines = math.ceil(ranks / members)
    rate, bound_by = _bytes_per_second(ranks, stride, gpu, num_processes, reached)
    if is_all_reduce and machines == 1 and members >= SWITCH_RANKS:
        rate *= reached.switch
    if operation.name.startswith("recv"):  # a message from one rank; what it sends itself goes the other way
        hops = (1, 0) if machines == 1 else (0, 1)
        return _fastest(operation.bytes / rate, hops, gpu.link, reached), bound_by
    sent = passes * (ranks - 1) / ranks * operation.bytes
    if is_all_to_all(operation) and bound_by == BY_MACHINE_LINK:
        sent = members * (ranks - members) / ranks * operation.bytes
    between = passes * (machines - 1)
    seconds = _fastest(sent / rate, (passes * (ranks - 1) - between, between), gpu.link, reached)
    if is_all_reduce and machines > 1:
        hops = (2 * (members - 1), 2 * math.ceil(math.log2(machines)))
        sent = operation.bytes  # of two machines one sends its sum, and the other the sum of both
        if machines > 2:
            sent *= 2
        seconds = min(seconds, _fastest(sent / (rate * TREE), hops, gpu.link, reached))
    return seconds, bound_by


def _fastest(sending: float, hops: tuple[int, int], link: str, reached: Efficiencies) -> float:
    """The seconds of a collective by the fastest of NCCL's protocols.

    sending: seconds at the link's whole rate. hops: the steps inside a machine, and those between machines.
    """
    inside, between = hops
    found = math.inf
    for protocol in reached.collective_steps.values():
        waiting = protocol["start"] + inside * protocol[link] + between * protocol[NETWORK]
        found = min(found, waiting + sending / protocol["bandwidth"])
    return found


def _bytes_per_second(
    ranks: int, stride: int, gpu: Gpu, num_processes: int, reached: Efficiencies
) -> tuple[float, str]:
    """(bytes a second that a ring's slowest link carries, which it is) for the group of every stride-th rank.

    A ring enters and leaves each machine once. NCCL makes several, through as many network cards, so that a group has
    its ranks' part of the machine's network; and to the network its GPUs' links to the host have to carry them.
    """
    ranks_per_machine = num_processes // (gpu.machines or 1)
    members = _members(ranks, stride, gpu, num_processes)
    inside = gpu.link_gb_per_second * reached.link
    if members == ranks or gpu.machine_link_gb_per_second is None:
        return inside * 1e9, BY_LINK
    to_others = min(
        gpu.machine_link_gb_per_second * members / ranks_per_machine * MACHINE_LINK,
        gpu.host_link_gb_per_second * members * HOST_LINK,
    )
    if members > 1 and inside <= to_others:
        return inside * 1e9, BY_LINK
    return to_others * 1e9, BY_MACHINE_LINK


def _members(ranks: int, stride: int, gpu: Gpu, num_processes: int) -> int:
    """The ranks of a group on one machine."""
    return min(ranks, max(1, num_processes // (gpu.machines or 1) // stride))


def host_copies_seconds(tally: Tally, gpu: Gpu) -> float:
    """The seconds of all copies between device and host in a tally."""
    return sum(
        times * host_copy_seconds(operation.bytes, gpu)
        for operation, times in tally.operations()
        if operation.kind == HOST_COPY
    )


def host_copy_seconds(size_bytes: float, gpu: Gpu) -> float:
    """The seconds of so many bytes between the device and the host, in either direction."""
    return size_bytes / (gpu.host_link_gb_per_second * 1e9 * HOST_LINK)


def notes(sent: Transfers, gpu: Gpu, num_processes: int) -> list[str]:
    """What is assumed of the links between ranks, a line each."""
    lines = []
    machines = gpu.machines or 1
    if num_processes > machines and sent.collectives and lanes_are_assumed(gpu):
        lines.append(
            f"speed: {gpu.link_gb_per_second:g} GB/s between the GPUs are those of sixteen lanes of PCIe, assumed. "
            "GeForce cards have no peer-to-peer, and slots often eight or four lanes, as the interval has. Type "
            f"gpu.link_gb_per_second={gpu.link_gb_per_second / 4:g} for such slots."
        )
    if num_processes > GPUS_PER_MACHINE * machines:
        lines.append(
            f"speed: {num_processes // machines} processes on one link of {gpu.link_gb_per_second:g} GB/s. Where they "
            "are on several machines, type gpu.machines= and gpu.machine_link_gb_per_second=."
        )
    if machines > 1:
        lines.append(
            f"speed: the network of {machines} machines carries {MACHINE_LINK:.0%} of "
            f"{gpu.machine_link_gb_per_second or 0:g} GB/s (gpu.machine_link_gb_per_second), assumed; published are "
            f"{MACHINE_LINK_WORST:.0%} to {MACHINE_LINK_BEST:.0%}. Collectives that it limits take "
            f"{sent.machine_seconds * 1000:,.3g} ms a step, at the same time as the computation."
        )
    return lines
