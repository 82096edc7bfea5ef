"""Views of recorded runs: a player for the screen and a strip for paper.

show_player(ring_allreduce)            animated, world sizes 2 to 8, and the strip under it
player(ring_allreduce)                 only the animated one
strip(record(ring_allreduce, 4, 4))    only the strip: a matplotlib Figure
watch(my_fn, world_size=4)             animated: your own run, also one that fails
show_explorer(rows)                    ring or tree: curves to play with, and their figure
"""

from minidist.widgets.explorer import Explorer, crossover_figure, explorer, show_explorer
from minidist.widgets.player import Player, player, show_player, watch
from minidist.widgets.strip import strip

__all__ = [
    "Explorer",
    "Player",
    "crossover_figure",
    "explorer",
    "player",
    "show_explorer",
    "show_player",
    "strip",
    "watch",
]
