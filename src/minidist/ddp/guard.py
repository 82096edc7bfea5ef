"""The guard: notices at once when a backward pass goes past the Reducer.

PyTorch's DDP says nothing in the iteration in which that happens, or ever. To tell a lawful
backward pass from one that leaves gradients unaveraged, the guard marks the outputs of each
forward, and so knows from which forwards a backward pass started.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from minidist.ddp.buckets import is_alias
from minidist.ddp.errors import MissingGradients, NotSynchronized
from minidist.ddp.unused import reachable

if TYPE_CHECKING:
    from minidist.ddp.reducer import Reducer

queue_callback = torch.autograd.Variable._execution_engine.queue_callback
_reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()


class _Output:
    """An output of one forward. It lives as long as the graph from which it came."""

    def __init__(self, tensor: Tensor, iteration: int, synchronized: bool):
        self.tensor = weakref.ref(tensor)
        self.iteration = iteration
        self.synchronized = synchronized
        self.begun = False  # whether a backward pass has come through it


class Guard:
    """Watches one Reducer."""

    def __init__(self, reducer: Reducer):
        self._reducer = weakref.ref(reducer)
        self._outputs: weakref.WeakSet[_Output] = weakref.WeakSet()
        self._active: set[_Output] = set()  # where the backward pass that runs now came from
        self._will_look = False  # at the end of the backward pass that runs now
        self.blind = False  # the forward returned nothing that autograd comes through
        self.synchronizes = True  # what the last forward was, or no_sync() has said since
        _reducers.add(reducer)

    @property
    def reducer(self) -> Reducer:
        reducer = self._reducer()
        assert reducer is not None
        return reducer

    def forward_ends(self, outputs: Sequence[Tensor], synchronized: bool) -> None:
        """Mark what a forward returns."""
        self._active.clear()
        self._will_look = False
        nodes = {t.grad_fn: t for t in outputs if t.grad_fn is not None}
        self.blind = not nodes
        for node, tensor in nodes.items():
            output = _Output(tensor, self.reducer.iteration, synchronized)
            self._outputs.add(output)
            node.register_prehook(self._begin(output))

    def _begin(self, output: _Output) -> Any:
        def begin(gradients: Any) -> None:
            output.begun = True
            if not self._active and self.reducer.record:
                self.reducer.record("backward", "", None, 0)
            self._active.add(output)
            self._look_at_the_end()

        return begin

    def _look_at_the_end(self) -> None:
        if not self._will_look:
            self._will_look = True
            queue_callback(self._backward_ends)

    # A gradient came

    def expected_gradient(self) -> None:
        """The outermost backward pass calls back at its end, also if it came through no output."""
        if not self._active and not self._will_look and self.blind:
            self._look_at_the_end()

    def unexpected_gradient(self, index: int) -> None:
        """A gradient that the Reducer does not wait for. Lawful under no_sync() only."""
        if not self._active:
            if self.synchronizes and not self.blind:
                self._look_at_the_end()  # perhaps it is only early: a penalty on the weights
            return
        synchronized = [output for output in self._active if output.synchronized]
        if len(synchronized) < len(self._active):
            return
        name, reducer = self.reducer.names[index], self.reducer
        if all(output.iteration == reducer.iteration for output in synchronized):
            raise NotSynchronized(
                f"a second backward pass through the same forward reached {name}: the gradients of "
                "the first are averaged already, those of the second would not be. Add the losses "
                "and call backward() once, or run forward again."
            )
        raise NotSynchronized(
            "two forwards and then two backward passes: the gradients of the first backward are "
            f"averaged already, those of the second ({name} and what follows) would not be. Add "
            "the losses and call backward() once, or run the first forward and its backward under "
            "no_sync()."
        )

    # The end of a backward pass

    def _backward_ends(self) -> None:
        reducer, active = self.reducer, self._active
        self._active, self._will_look = set(), False
        if not active and not self.blind:
            raise NotSynchronized(
                "a backward pass made gradients of parameters of this DDP, but did not come "
                "through an output of its forward: was ddp.module called instead of ddp? These "
                "gradients are this rank's alone. Call ddp(...); or, if that is what you want, run "
                "forward and backward under ddp.no_sync()."
            )
        if reducer.end_of_first_static_iteration():
            return
        if any(output.synchronized for output in active) or self.blind:
            self.check_complete()

    def check_complete(self, at_step: bool = False) -> None:
        """Raise MissingGradients if a reduction has begun that nothing will complete."""
        reducer = self.reducer
        if not reducer.expects_hooks or not reducer.marked:
            return
        missing = [i for i in range(len(reducer.names)) if i not in reducer.marked]
        if not missing or (not at_step and self._may_still_come(missing)):
            return
        reducer.expects_hooks = False  # whoever catches this may go on
        names = ", ".join(reducer.names[i] for i in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise MissingGradients(
            f"the backward pass is over, and {names}{more} got no gradient: "
            f"{len(reducer.buckets) - reducer.next_bucket} of {len(reducer.buckets)} buckets were "
            "not averaged. If the loss does not depend on these parameters, pass "
            "find_unused_parameters=True, or take them out of the module."
        )

    def _may_still_come(self, missing: Sequence[int]) -> bool:
        """Whether another backward pass, from another output, may bring them."""
        wanted = {self.reducer.accumulators[i] for i in missing}
        for output in list(self._outputs):
            if output.synchronized and not output.begun:
                tensor = output.tensor()
                # Without the tensor, its graph lives on in a loss: nobody can look into that.
                if tensor is None or wanted & reachable([tensor.grad_fn]):
                    return True
        return False

    def check_view(self, index: int, gradient: Tensor | None, view: Tensor) -> None:
        """With gradient_as_bucket_view, nobody may have put another tensor into `.grad`."""
        if gradient is not None and not is_alias(gradient, view):
            raise NotSynchronized(
                f"gradient_as_bucket_view=True, but {self.reducer.names[index]}.grad was replaced "
                "during the backward pass: change it in place instead."
            )

    # What to say

    def marked_twice(self, index: int) -> str:
        return (
            f"the gradient of {self.reducer.names[index]} became ready twice in one backward pass. "
            "Is a module checkpointed with use_reentrant=True and used twice, or is a parameter "
            "used in several backward passes that run inside each other? Pass use_reentrant=False "
            "to the checkpoint, or static_graph=True to DDP."
        )

    def graph_changed(self, index: int) -> str:
        count = self.reducer.hook_counts[index]
        return (
            f"static_graph=True, but {self.reducer.names[index]} got a gradient more often than "
            f"the {count} time(s) of the first iteration. If the graph may change, pass "
            "find_unused_parameters=True instead of static_graph=True."
        )


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    """No optimizer steps with gradients that are half averaged."""
    for reducer in list(_reducers):
        if reducer.expects_hooks and reducer.marked:
            mine = {id(parameter) for parameter in reducer.parameters}
            if any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
                reducer.guard.check_complete(at_step=True)


register_optimizer_step_pre_hook(_before_step)
