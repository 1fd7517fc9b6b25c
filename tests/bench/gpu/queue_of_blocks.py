#!/usr/bin/env python3
"""Simulates the queue of FlashAttention's blocks: in which order do multiprocessors end together?

    python3 tests/bench/gpu/queue_of_blocks.py

Blocks start in their order, each where the next place is free. A block takes as long as its tiles of 64 keys, up to the
diagonal, and three more to begin and end. Per shape, this prints the time over the work per place, for three orders of
place_of_block (08_fused_kernels/fused_cuda/flash.cuh): head by head, as in commit b0f117b; with as many heads at a time
as fit into half of an H100's L2 cache, as measured; and with as many as it computes at a time, as the program does.
"""
import heapq

# head size, tokens, heads of all sequences
SHAPES = [(128, 2048, 128), (128, 8192, 32), (64, 2048, 256), (64, 8192, 64), (64, 1024, 48)]


def order(heads, blocks, fit):
    """The tiles in the order of place_of_block, 0 with the most keys, if `fit` heads are computed at a time."""
    fit = max(1, min(fit, heads))
    times = -(-heads // fit)
    together = -(-heads // times)
    return [i // n for first in range(0, heads, together) for n in [min(together, heads - first)]
            for i in range(n * blocks)]


def finish(tiles, time_of, places):
    free = [0] * places
    for tile in tiles:
        heapq.heappush(free, heapq.heappop(free) + time_of(tile))
    return max(free) / (sum(map(time_of, tiles)) / places)


print("head size, tokens, heads: head by head, those in half of L2, those of 256 blocks")
for size, tokens, heads in SHAPES:
    queries, places = (128, 2 * 132) if size > 64 else (256, 132)
    blocks = tokens // queries
    fits = 1, (25 << 20) // (2 * tokens * size * 2), -(-256 // blocks)
    row = [finish(order(heads, blocks, fit), lambda tile: (blocks - tile) * queries / 64 + 3, places) for fit in fits]
    print(f"{size:4} {tokens:6} {heads:4}: " + ", ".join(f"{x:.2f}" for x in row))
