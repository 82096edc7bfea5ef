"""The guard: notices at once when a backward pass goes past the Reducer.

PyTorch's DDP says nothing in the iteration in which that happens, or ever. The guard judges every
backward pass when it ends, by three things: which outputs of forwards it came through, whether it
made gradients that the Reducer did not wait for, and whether gradients that it waits for can still
come. It cannot look into an object of an unknown class: of such outputs it believes what may be.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from minidist.ddp.buckets import is_alias
from minidist.ddp.errors import MissingGradients, NotSynchronized, RanksDisagree
from minidist.ddp.roll_call import LACKS
from minidist.ddp.unused import reachable

if TYPE_CHECKING:
    from minidist.ddp.reducer import Reducer

queue_callback = torch.autograd.Variable._execution_engine.queue_callback
_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


class _Output:
    """An output of one forward. It lives as long as the graph from which it came."""

    def __init__(self, tensor: Tensor, synchronized: bool):
        self.tensor = weakref.ref(tensor)
        self.synchronized = synchronized  # not under no_sync()
        self.used = False  # a backward pass that came through it has made gradients


class Guard:
    """Watches one Reducer."""

    def __init__(self, reducer: Reducer):
        self._reducer = weakref.ref(reducer)
        self._mine = {id(parameter) for parameter in reducer.parameters}
        self._outputs: weakref.WeakSet[_Output] = weakref.WeakSet()
        self.in_no_sync = False
        self._sees = True  # the last forward returned something that the guard can look into
        self._synchronized = True  # the last forward
        self._forget_pass()
        _guards.add(self)

    @property
    def reducer(self) -> Reducer:
        reducer = self._reducer()
        assert reducer is not None
        return reducer

    def forward_ends(self, outputs: Sequence[Tensor], synchronized: bool) -> None:
        """Mark what a forward returns."""
        nodes = {_node_of(tensor): tensor for tensor in outputs if tensor.grad_fn is not None}
        self._sees, self._synchronized = bool(nodes), synchronized
        for node, tensor in nodes.items():
            output = _Output(tensor, synchronized)
            self._outputs.add(output)
            node.register_prehook(self._passes(output))

    # During a backward pass

    def _forget_pass(self) -> None:
        self.runs = False
        self._through: dict[_Output, Any] = {}  # outputs that it came through, and their nodes
        self._made_gradients = False
        self._stray: int | None = None  # a parameter whose gradient nobody waited for

    def _begin(self) -> None:
        if not self.runs:
            self.runs = True
            queue_callback(self._pass_ends)
            if self.reducer.record:
                self.reducer.record("backward", "", None, 0)

    def _passes(self, output: _Output) -> Callable[[Any], None]:
        reducer = self.reducer  # so the graph keeps it alive, even if the DDP is dropped

        def passes(_: Any) -> None:
            reducer.guard._begin()
            reducer.guard._through[output] = torch._C._current_autograd_node()

        return passes

    def gradient(self, index: int, expected: bool) -> None:
        """The gradient of a parameter was accumulated."""
        self._begin()
        self._made_gradients = True
        if not expected and not self.in_no_sync:
            self._stray = index

    @property
    def broke_off(self) -> bool:
        """Whether an exception has ended the last backward pass, so that its end never came."""
        return self.runs and torch._C._current_graph_task_id() == -1

    def forget_broken_pass(self) -> None:
        self._forget_pass()

    # At its end

    def _pass_ends(self) -> None:
        reducer, through, stray = self.reducer, self._through, self._stray
        made_gradients = self._made_gradients
        self._forget_pass()
        if not made_gradients:  # torch.autograd.grad, or inputs=
            return
        if stray is not None:
            self._check_stray(reducer.names[stray], [o for o in through if o.synchronized], through)
        for output in through:
            output.used = True
        if reducer.expects_hooks and not reducer.end_of_first_static_iteration():
            self.check_complete(through)

    def _check_stray(self, name: str, synchronized: Sequence[_Output], through: Any) -> None:
        """Gradients that nobody waited for are lawful if they came from forwards in no_sync()."""
        if any(output.used for output in synchronized):
            raise NotSynchronized(
                f"a second backward pass through the same forward reached {name}: the gradients of "
                "the first are averaged already, those of the second are not. Add the losses and "
                "call backward() once, or run forward again."
            )
        if synchronized:
            raise NotSynchronized(
                "two forwards and then two backward passes: the gradients of the first backward "
                f"are averaged already, those of the second ({name}, for one) are not. Add the "
                "losses and call backward() once, or run the first forward and its backward under "
                "no_sync()."
            )
        unseen_in_no_sync = not self._sees and not self._synchronized
        shared = any(other is not self and self._mine & other._mine for other in _guards)
        if not through and not unseen_in_no_sync and not shared:
            raise NotSynchronized(
                f"a backward pass made a gradient of {name}, but did not come through an output of "
                "this DDP's forward: was ddp.module called instead of ddp? This gradient is this "
                "rank's alone. Call ddp(...); add a penalty on the weights to the loss; or, if "
                "that is what you want, run forward and backward under ddp.no_sync()."
            )

    def check_complete(self, through: dict[_Output, Any] | None = None) -> None:
        """Raise MissingGradients if a reduction has begun that nothing will complete.

        through: the outputs that the backward pass came through which has just ended; without,
        it is too late for another one.
        """
        reducer = self.reducer
        if not reducer.expects_hooks or not reducer.marked:
            return
        missing = [i for i in range(len(reducer.names)) if i not in reducer.marked]
        if not missing or (through is not None and self._may_still_come(missing, through)):
            return
        names = ", ".join(reducer.names[i] for i in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        error = MissingGradients(
            f"the backward pass is over, and {names}{more} got no gradient: "
            f"{len(reducer.buckets) - reducer.next_bucket} of {len(reducer.buckets)} buckets were "
            "not averaged. If the loss does not depend on these parameters, pass "
            "find_unused_parameters=True, or take them out of the module."
        )
        try:
            reducer.abandon(LACKS)
        except RanksDisagree as disagreement:
            raise error from disagreement
        raise error

    def _may_still_come(self, missing: Sequence[int], through: dict[_Output, Any]) -> bool:
        """Whether another backward pass may bring them, through an output or with other inputs=."""
        if not self._sees:
            return True
        wanted = {self.reducer.accumulators[i] for i in missing}
        for output in list(self._outputs):
            tensor = output.tensor()
            node = through.get(output) or (tensor is not None and tensor.grad_fn)
            if output.synchronized and (wanted & reachable([node]) if node else not output.used):
                return True  # without a node, its graph lives on in a loss: nobody can look there
        return False

    def check_step(self) -> None:
        """An optimizer is about to use the gradients."""
        if self.runs and self.reducer.expects_hooks:
            raise NotSynchronized(
                "an optimizer steps before the end of a backward pass, or after an exception broke "
                "it off: its gradients are not averaged yet. Step after backward() has returned."
            )
        self.check_complete()

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
            f"the gradient of {self.reducer.names[index]} became ready twice in one iteration. "
            "Do two outputs that share it have backward passes of their own? Add their losses and "
            "call backward() once. Is a module checkpointed with use_reentrant=True and used "
            "twice? Pass use_reentrant=False to the checkpoint, or static_graph=True to DDP."
        )

    def graph_changed(self, index: int) -> str:
        count = self.reducer.hook_counts[index]
        return (
            f"static_graph=True, but {self.reducer.names[index]} got a gradient more often than "
            f"the {count} time(s) of the first iteration. If the graph may change, pass "
            "find_unused_parameters=True instead of static_graph=True."
        )


def _node_of(tensor: Tensor) -> Any:
    """Where a backward pass from it comes by, also when it is changed in place afterwards."""
    base = tensor._base  # a view changed in place gets a new node, its base keeps the old one
    return (base is not None and base.grad_fn) or tensor.grad_fn


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    """No optimizer steps with gradients that are half averaged."""
    for guard in list(_guards):
        reducer = guard._reducer()  # None: its DDP was dropped, and only the guard is left
        if reducer and reducer.expects_hooks and (guard.runs or reducer.marked):
            its = (id(p) for group in optimizer.param_groups for p in group["params"])
            if any(identity in guard._mine for identity in its):
                guard.check_step()


register_optimizer_step_pre_hook(_before_step)
