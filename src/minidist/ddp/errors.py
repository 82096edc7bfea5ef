"""What our DDP refuses to do silently; each message names parameters or ranks, and a remedy."""

from __future__ import annotations


class DDPError(RuntimeError):
    """Gradients would not be the average over the ranks."""


class MissingGradients(DDPError):
    """A backward pass ended, and some parameters have no gradient: their buckets were not sent."""


class NotSynchronized(DDPError):
    """A backward pass makes gradients that nobody would average."""


class ParametersChanged(DDPError):
    """The module's parameters are not those that were wrapped."""


class GraphChanged(DDPError):
    """With static_graph=True, an iteration used its parameters otherwise than the first one."""


class RanksDisagree(DDPError):
    """The ranks wrapped different modules, or are doing different things."""
