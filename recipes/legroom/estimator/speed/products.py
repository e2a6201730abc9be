"""The seconds of matrix products: whole tiles in whole waves, and the traffic to memory beside them.

    seconds = (c^p + m^p)^(1/p)

c: the arithmetic. A product is computed in tiles, and a wave of tiles, one for each multiprocessor, takes as long as a
full one however few it has. A tile takes time for its depth (K), and at least that of `tile_depth`, in which its first
factors are loaded and its result is written. m: the bytes over the bandwidth. p: how well the two overlap.
Tiles, waves and splits: NVIDIA's 'Matrix Multiplication Background' guide. The form was chosen on half of the shapes of
published kernels; docs/results/published_speed.md has the errors on the others.
"""

import functools
import math

# Tile sizes (rows, columns of the result) that kernels of the libraries have. A batch of products has the second list,
# and is not split: so the published kernels.
TILES = ((128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128))
BATCHED_TILES = ((128, 128), (128, 64), (64, 64), (128, 32), (64, 32))
SPLITS = (1, 2, 4, 8)  # a product with few tiles divides K into so many parts and adds their results
LEAST_SPLIT = 256  # the least length of K in one part
FULL_TILE, SMALL_TILE = 128 * 128, 0.05  # tiles of fewer elements are slower: by their ratio to this power
DEPTH_NORM = 4  # how K and `tile_depth` add up: as their 4-norm


@functools.cache
def product_flops(shape: tuple[int, int, int, int], sm_count: int, tile_depth: float = 0.0) -> float:
    """The FLOPs of a batch of matrix products, with those that tiles, waves and their start waste, by the best tile.

    shape: (batch, M, N, K). sm_count: multiprocessors. tile_depth: the least depth (elements of K) of a tile.
    """
    batch, rows, columns, depth = shape
    best = math.inf
    for height, width in TILES if batch == 1 else BATCHED_TILES:
        slower = max(1.0, FULL_TILE / (height * width)) ** SMALL_TILE
        for parts in SPLITS if batch == 1 else (1,):
            if parts > 1 and depth < parts * LEAST_SPLIT:
                break
            tiles = batch * math.ceil(rows / height) * math.ceil(columns / width) * parts
            long = ((depth / parts) ** DEPTH_NORM + tile_depth**DEPTH_NORM) ** (1 / DEPTH_NORM)
            best = min(best, math.ceil(tiles / sm_count) * sm_count * 2 * height * width * long * slower)
    return best


def joined(computing: float, moving: float, sharpness: float) -> float:
    """The seconds of arithmetic and traffic that overlap partly: their p-norm. Infinitely sharp: the longer one."""
    longest = max(computing, moving)
    if not longest or sharpness == math.inf:
        return longest
    return longest * ((computing / longest) ** sharpness + (moving / longest) ** sharpness) ** (1 / sharpness)
