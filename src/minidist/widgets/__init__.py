"""Views of recorded runs: a player for the screen and a strip for paper.

show_player(ring_allreduce)            animated, world sizes 2 to 8, and the strip under it
player(ring_allreduce)                 only the animated one
strip(record(ring_allreduce, 4, 4))    only the strip: a matplotlib Figure
watch(my_fn, world_size=4)             animated: your own run, also one that fails
"""

from minidist.widgets.player import Player, player, show_player, watch
from minidist.widgets.strip import strip

__all__ = ["Player", "player", "show_player", "strip", "watch"]
