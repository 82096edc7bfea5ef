"""Views of recorded runs: a player for the screen and a strip for paper.

show_player(ring_allreduce)            animated, world sizes 2 to 8, and the strip under it
player(ring_allreduce)                 only the animated one
strip(record(ring_allreduce, 4, 4))    only the strip: a matplotlib Figure
watch(my_fn, world_size=4)             animated: your own run, also one that fails
show_explorer(rows)                    ring or tree: curves to play with, and their figure
show_timeline({cap: trace, ...})       training steps of a DDP by bucket cap, and their figure
"""

from minidist.widgets.explorer import Explorer, crossover_figure, explorer, show_explorer
from minidist.widgets.player import Player, player, show_player, watch
from minidist.widgets.strip import strip
from minidist.widgets.timeline import Timeline, show_timeline, timeline, timeline_figure

__all__ = [
    "Explorer",
    "Player",
    "Timeline",
    "crossover_figure",
    "explorer",
    "player",
    "show_explorer",
    "show_player",
    "show_timeline",
    "strip",
    "timeline",
    "timeline_figure",
    "watch",
]
