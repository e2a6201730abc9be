"""Between which shares of its prediction a time lies in nine of ten steps, by what is known of such steps.

From the published steps by class (docs/results/published_intervals.md). Blind rows are missed more often than rows at
hand, so that a class about which less is known has an interval of up to twice its lower end; steps whose ranks share
out experts have more.
"""

from legroom.config import Gpu
from legroom.estimator.speed import calibrated
from legroom.estimator.speed.efficiencies import Efficiencies

# The fastest and the slowest host, as shares of the assumed one's seconds, by the GPU that stands in it. Published:
# 0.64 (an H100, under autocast), 0.95 and 1.07 (a B200); before, 0.79, 0.9 to 1.0 (a V100 of 2022), and 2.05, which
# is outside.
HOPPER = (9, 0)
HOSTS = (0.6, 1.2)
OLDER_HOSTS = (0.85, 1.7)
AMPERE = (8, 0)
OLDER_GPUS = 1 / 3  # the least error of GPUs before Ampere: few of their steps are published
ADAPTERS = 3.0  # the upper end of steps beside frozen weights, in errors: published ones took 3 to 23 % longer
WIDEST = 2.0
# The upper end of steps whose ranks share out experts, as a share of the prediction: the three published ones took 1.5,
# 1.9 and 2.0 times what is predicted (docs/results/published_ranks.md), which no slower kernel explains.
SHARED_EXPERTS = 2.0


def device(gpu: Gpu, reached: Efficiencies, error: float, beside_frozen: bool) -> tuple[float, float]:
    """(low, high) of the seconds of the device. error: the share of `Efficiencies.error`. beside_frozen: most weights
    of the model are not trained."""
    if reached.source == calibrated.HERE:
        return 1 - error, 1 + error
    if gpu.compute_capability < AMPERE:
        error = max(error, OLDER_GPUS)
    if not beside_frozen:
        return 1 - error, 1 + error
    low = 1 - error / 2
    return low, min(WIDEST * low, 1 + ADAPTERS * error)


def host(gpu: Gpu, reached: Efficiencies, error: float) -> tuple[float, float]:
    """(low, high) of the seconds of the host. One that is known, by `gpu.host_factor` or by a calibration, is as
    uncertain as the device (assumed)."""
    if gpu.host_factor not in (None, 1.0) or reached.source == calibrated.HERE:
        return 1 - error, 1 + error
    if gpu.compute_capability >= HOPPER:
        return HOSTS
    return OLDER_HOSTS
