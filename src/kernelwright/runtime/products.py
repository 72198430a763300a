"""How a generated product is launched: its sizes, its tile and the chip in, three numbers out.

The kernel (kernels/gemm_sm90.cuh) does as it is told: how many neighbouring tiles a block
multiplies at once, how many clusters of blocks run, and how many rows of the right operand are
split before they do; the other rows are split on the way, by warps that have nothing else to do.
"""

import collections
import functools

# `tiles` at once, `clusters`, `early` rows, and the reason as a sentence.
ProductLaunch = collections.namedtuple("ProductLaunch", "tiles clusters early why")
# What is known of a product: columns and depth of one matrix; the tile's columns, blocks together
# and tiles to a band; how many float16 numbers an element is split into (0: none); whether the
# right operand lies so that it can be split on the way; how many tiles at once (0: as it pays).
ProductRule = collections.namedtuple("ProductRule", "columns depth tile planes streams at_once")
PRODUCT_ROWS = 128  # of a tile
SPLIT_PANEL = 64


def _waves(groups, cluster, processors):
    """The clusters that run, and how many groups of tiles the busiest of them multiplies.

    If a few multiprocessors less take as many waves, all have as many tiles, and those of a strip
    of the right operand are multiplied in the same wave.
    """
    most = max(1, processors // cluster)
    waves = -(-groups // most)
    enough = -(-groups // waves)
    return (enough if waves == 1 or enough * 8 >= most * 7 else most), waves


def can_pair(tile, planes):
    """Whether there is a kernel that multiplies two neighbouring tiles at once."""
    width, cluster, _ = tile
    return planes == 2 and cluster == 2 and width == 128


@functools.cache
def product_launch(rows, batch, rule, processors, frozen):
    """A ProductLaunch for `batch` products of so many rows; `frozen`: the right one is split."""
    columns, depth, tile, planes, streams, at_once = rule
    if rows == 0 or batch == 0:
        return ProductLaunch(1, 1, 0, "there is nothing to multiply")
    width, cluster, band = tile
    down, across = -(-rows // PRODUCT_ROWS), -(-columns // (width * cluster))
    clusters, waves = _waves(down * across * batch, cluster, processors)
    panels = -(-columns // SPLIT_PANEL) * SPLIT_PANEL
    early, why = panels, ""
    if planes and frozen:
        early, why = 0, "the right operand is frozen"
    elif planes == 1:
        why = "the product is over too soon to split on the way"
    elif planes == 2 and not streams:
        why = "the right operand is split before: it is batched, or does not lie along its depth"
    elif at_once == 2 and can_pair(tile, planes):
        why = "two tiles at once leave no registers to split on the way"
    elif planes == 2 and waves == 1:
        why = "there is one wave, and all of the right operand is in it"
    elif planes == 2:
        # The splitting warps do some 50 rows a microsecond, in which 64 of depth are multiplied.
        first = -(-clusters // min(down, band)) * cluster * width
        if first * 5 > depth * 2:
            why = "a wave ends before the next one's rows could be split on the way"
        else:
            early = min(first, panels)
            why = f"{early} rows of the right operand are split before the first wave"
            return ProductLaunch(1, clusters, early, f"{why}, the others on the way")
    if can_pair(tile, planes) and at_once != 1:
        pairs = -(-rows // (2 * PRODUCT_ROWS)) * -(-columns // (2 * width)) * batch
        half, turns = _waves(pairs, cluster, processors)
        if at_once == 2 or turns * 2 <= waves:
            return ProductLaunch(2, half, early, f"{why}; two tiles at once take {turns} wave(s)")
        why = f"{why}; one tile at once, since two would take {turns} wave(s) instead of {waves}"
    return ProductLaunch(1, clusters, early, why or f"{waves} wave(s) of tiles")
