"""Views of recorded runs: a player for the screen and a strip for paper.

player(ring_allreduce)                 animated, world sizes 2 to 8
watch(my_fn, world_size=4)             animated, your own run, also one that fails
"""

from minidist.widgets.player import Player, player, watch

__all__ = ["Player", "player", "watch"]
