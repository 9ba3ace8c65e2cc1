"""A captured step: it is planned, called in place of the function, and says what it does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from .. import _core
from .._planning.arguments import Budget, Observer, native_options, options_of
from .._planning.document import Path
from .._planning.explanation import explain
from .._planning.graph import Graph
from .._planning.html import fields_html
from .._planning.measured import Profile, RunLog
from .._planning.plan import Plan
from .._planning.report import report_html
from .._planning.result import PlanResult, result_of
from .._step.far_state import fetch_before_reading, fetch_before_state_dict
from .._step.memory import budget_for
from .._step.process_group import telling
from .._step.report import OtherDevice, StepReport
from .._step.turns import in_turn
from ..errors import InputError
from .alternatives import ApproximateValue
from .explanation import StepExplanation
from .recorded_step import RecordedStep


class CapturedStep(RecordedStep):
    """A training step that was recorded. Made by `capture()`.

    It is called like the function, and it does what the function does. Afterwards the gradients of
    all leaf tensors that the step reads are in `.grad`, and buffers and the random state are as
    after the function. The tensors that it returns have no history. Numbers of Python, such as a
    dropout probability, are those of the capture. `guards()` lists what is compared before each
    call, so that a change of such a number is noticed.
    """

    @in_turn
    def plan(
        self,
        *,
        budget: Budget = None,
        planner: str | None = None,
        time_limit: float | str = 10.0,
        threads: int = 0,
        enforce: bool = True,
        arena: bool = True,
        device_graph: bool = False,
        offload: str | None = None,
        machine: Path | dict[str, Any] | None = None,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
        observer: Observer | None = None,
    ) -> PlanResult:
        """Plans the step for a budget.

        Args:
            budget: All device bytes during the step: parameters, gradients, optimizer state,
                inputs, and whatever else is live. It is a number of bytes, a text such as "8 GiB",
                a share such as "60%" of plain training's peak, "auto" for what the device has
                free, or None for the budget of the capture, and without that no limit.
            planner: The name of a planner of graphs. None stands for "graph", for "graph_levels"
                with `offload`, or for "devices" with `capture(other_devices=...)`.
            time_limit: The time for all searches together: seconds, or a text such as "10s".
            threads: The number of threads. 0 stands for as many as the machine has.
            enforce: Whether a request beyond the budget raises BudgetError.
            arena: Whether all memory of the step lies in one arena from the second step on: on the
                CPU, and on CUDA devices.
            device_graph: Whether the step runs as a CUDA graph from the second step on, where it
                can: the device starts all operations with one request. `report()` says whether it
                does, and why not. It takes an arena, and the copies of the inputs count in the
                budget.
            offload: Where values may move while nothing reads them: "disk:DIRECTORY" for a
                temporary file there, for steps on the CPU; "host" for pinned memory of the host,
                for steps on other devices. The plan decides for each value whether it stays, is
                made again, or moves. A call whose copy fails raises InputError, and all is as
                before it. It is not for a step of a process group. "auto" plans without a second
                memory, too, and takes one only if the step is then predicted to be faster by more
                than the measurement can tell: "host" on a device, and on the CPU a disk in the
                temporary directory, or with "auto:DIRECTORY" in that one. `report()` says what it
                picked, and why.
            machine: The bandwidths of that memory: a `reprise.machine` file, or a dict in its form.
                None measures them. A step with `capture(other_devices=...)` takes the bandwidths
                between its devices here, and their capacities. The memories have the names of the
                devices, that of the inputs first, and all of them compute.
            offload_optimizer: Whether the state of the optimizer inside the step
                (`capture(optimizer=...)`) lies in the memory of `offload` between the calls. It
                comes to the device for each parameter's update and goes back behind it, so the peak
                holds the state of a few parameters. State that is away cannot be read:
                `optimizer.state_dict()` and `reprise.save_state()` bring it back until the next
                call, and so does `fetch_optimizer_state()`.
            offload_parameters: Whether parameters lie in the memory of `offload` between the calls.
                They come to the device for the operations that read them, and may leave and come
                again for the backward. Frozen ones (`requires_grad` is False) are never written
                back. Those that the optimizer inside the step updates are, behind their update.
                Parameters that are trained and not updated inside the step stay on the device, and
                so do those of less than 4096 bytes. Within a budget, parameters and state stay
                where that makes the step faster. A parameter that is away cannot be read:
                `model.state_dict()`, `model.load_state_dict()` and `reprise.save_state()` bring all
                back until the next call, and so does `fetch_parameters()`.
            observer: A function that is called with `Progress`.

        Returns:
            The answer of the planner. Its plan is now in force.

        Raises:
            BudgetError: No plan fits. The plan before stays in force.
            InputError: An argument is wrong.

        Examples:
            >>> result = step.plan(budget="80%")
            >>> result = step.plan(budget="80%", offload="disk:/tmp")
        """
        with telling(self._native):  # The other ranks of a group wait for this one's plan.
            options = self._for_runtime(options_of(CapturedStep.plan, locals()))
        self._foreseen.look()
        try:
            result = result_of(self._native.plan(**options))
        finally:
            self._follow_overheads()
        self._keep_readable(options)
        self._plan_options = options | {
            "machine": self._native.machine(),
            "share_of": self._native.shared_peak(),  # A new capture has the same budget.
        }
        return result

    def _for_runtime(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns options of a plan in the form that the runtime takes."""
        limit = budget_for(options["budget"], self._device)
        if isinstance(limit, str):
            _core.resolve_budget(limit, 1)  # It raises InputError for what is no budget.
        observer = options.get("observer") or self._request.observer
        return native_options(options | {"budget": limit, "observer": observer})

    @in_turn
    def use(
        self,
        plan: Plan,
        *,
        budget: Budget = None,
        enforce: bool = True,
        arena: bool = True,
        device_graph: bool = False,
        offload: str | None = None,
        machine: Path | dict[str, Any] | None = None,
        offload_optimizer: bool = False,
        offload_parameters: bool = False,
    ) -> None:
        """Takes a plan from elsewhere.

        Args:
            plan: A plan for the problem `graph`.
            budget: As for `plan()`. None stands for the plan's own budget.
            enforce, arena, device_graph, offload: As for `plan()`.
            machine: The machine that a plan was made for which moves values.
            offload_optimizer, offload_parameters: As for `plan()`.

        Raises:
            InputError: The plan is not valid. The message names all violations.
        """
        own = plan.budget_bytes if budget is None else budget
        options = self._for_runtime(options_of(CapturedStep.use, locals()) | {"budget": own})
        self._native.use(plan.to_json(), **options)
        self._keep_readable(options)

    def _keep_readable(self, options: dict[str, Any]) -> None:
        """Lets what these options of a plan let leave the device be read between the calls."""
        if options["offload_optimizer"] and self._request.optimizer is not None:
            fetch_before_reading(self._request.optimizer, self.fetch_optimizer_state)
        if options["offload_parameters"]:
            fetch_before_state_dict(self._modules, self.fetch_parameters)

    @in_turn
    def fetch_optimizer_state(self) -> None:
        """Brings the optimizer's state back to the device until the next call.

        It does nothing unless the step was planned with `offload_optimizer`.

        Raises:
            InputError: The state could not be read back. What is back by then stays.
        """
        self._native.fetch_optimizer_state()

    @in_turn
    def fetch_parameters(self) -> None:
        """Brings parameters back to the device until the next call.

        It does nothing unless the step was planned with `offload_parameters`. Call it before the
        parameters are read or written, as `model(x)` for a test does.

        Raises:
            InputError: A parameter could not be read back. What is back by then stays.
        """
        self._native.fetch_parameters()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs one training step. If nothing was planned, the step is planned as by `plan()`.

        After an exception buffers, the random state and gradients are as before the step. Gradients
        that the step itself drops first may be gone.

        Args:
            *arguments: The arguments of the function. Tensors may have other values than those of
                the capture, and nothing else may differ.
            **keywords: The keyword arguments of the function.

        Returns:
            The value that the function returns.

        Raises:
            BudgetError: A request for memory was refused.
            InputError: The inputs, a module or a setting differ from those of the capture, or
                lockstep finds that the function does something else. With `on_miss="recapture"` the
                step is captured and planned again instead; for a difference that lockstep finds, a
                RuntimeWarning says which calls may have computed what the function did not say.
        """
        with self._turns, telling(self._native):
            return self._call(arguments, keywords)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets the calls inside add the gradients of this rank alone, as `no_sync()` of DDP does.

        They are added to `.grad`, and nothing is sent. The next call outside adds its own and
        averages the sum. All ranks do the same.

        Raises:
            InputError: The step was captured without `process_group`, or with an optimizer, which
                uses its gradients up at each call.
        """
        self._native.synchronize(False)
        try:
            yield
        finally:
            self._native.synchronize(True)

    @property
    @in_turn
    def graph(self) -> Graph:
        """The recorded step as a problem."""
        return Graph.from_json(self._native.graph())

    @property
    @in_turn
    def planned(self) -> PlanResult:
        """The plan in force. Reading it raises InputError while nothing is planned."""
        return result_of(self._native.planned())

    @in_turn
    def guards(self) -> list[str]:
        """Returns the names of the state that is compared before each call.

        The names of Python state are those of the program, such as `model.drop.p` or
        `schedule['scale']`. Settings of PyTorch stand behind them, such as "deterministic
        algorithms".
        """
        return [*self._guards.names(), *self._native.guards()]

    @in_turn
    def explain(self) -> StepExplanation:
        """Says what the step depends on, who notices a change of it, and what its plan does.

        The answer names the state that is compared before each call, the numbers that the step
        reads out of tensors, and the state that is reached and not compared.

        Examples:
            >>> text = str(step.explain())
        """
        report, plan = self.report(), None
        with contextlib.suppress(InputError):  # Nothing is planned yet.
            plan = self.planned.plan
        return StepExplanation(
            compared=self._guards.by_kind() | {"settings": tuple(self._native.guards())},
            inputs=self._inputs,
            input_constants=self._input_constants(),
            host_reads=tuple(self.host_reads()),
            unwatched=self._guards.unwatched(),
            unguarded=self._request.unguarded,
            lockstep=self._request.lockstep,
            steps=report.steps,
            lockstep_steps=report.compared,
            plan=None if plan is None else explain(self.profile(), plan, machine=self.machine()),
            refused=tuple(self._native.refusals()),
        )

    def _input_constants(self) -> int:
        """Returns how many numbers and texts among the inputs are compared at each call."""
        return len(self._recorded.inputs.constants())

    @in_turn
    def host_reads(self) -> list[str]:
        """Returns the booleans and whole numbers that the step reads out of tensors, in order.

        They are those of the outcome that ran last. Each call reads them again, in their place, and
        compares them. An entry is a text such as "True, a number that the step reads out of a
        tensor at train.py:41".
        """
        return self._native.host_reads()

    @in_turn
    def approximate_values(self) -> list[ApproximateValue]:
        """Returns the values that the plan in force keeps in few bits, with the codecs' bounds.

        There are none unless `capture(alternatives=...)` names a kind of the exactness
        "approximate".

        Raises:
            InputError: Nothing is planned yet.

        Examples:
            >>> step.plan().plan is not None
            True
            >>> kept = sum(value.kept_bytes for value in step.approximate_values())
        """
        return [ApproximateValue(*row) for row in self._native.approximate_values()]

    @in_turn
    def check_codecs(self, check: str = "compare") -> None:
        """Says how the calls that follow treat values that the plan keeps in few bits.

        The values are then held in memory beside the budget. The forward has the bits of plain
        training in any case.

        Args:
            check: "compare" compares each value that is decoded with the one that was encoded:
                `approximate_values()` then has the errors. "bypass" gives the backward the values
                as they were, so that gradients have the bits of a step without codecs. "none"
                checks nothing.

        Raises:
            InputError: `check` has another value.

        Examples:
            >>> step.check_codecs("compare")
            >>> loss = step(x, y)
            >>> step.check_codecs("none")
        """
        self._native.check_codecs(check)

    @property
    @in_turn
    def found_in_cache(self) -> bool:
        """Whether the last capture took its measured costs from `cache=`."""
        return self._native.cache_use()[0]

    @property
    @in_turn
    def outcomes(self) -> int:
        """The number of outcomes that are kept, one for each list of numbers that was read."""
        return len(self._native.outcomes())

    @property
    def differences(self) -> list[str]:
        """The differences that lockstep found and that led to a new capture, in words."""
        return list(self._differences)

    def _last_miss(self) -> str:
        """Returns the difference at the last call that the recordings did not fit, or ""."""
        return self._missed

    @in_turn
    def profile(self) -> Profile:
        """Returns the measured graph, and how it was measured."""
        return Profile.from_json(self._native.profile())

    @in_turn
    def save_report(self, path: Path) -> None:
        """Writes the plan in force to a file as an HTML page, as `report_html()` does.

        The page also says what the step depends on, as `explain()` does.

        Raises:
            InputError: Nothing is planned yet, or the file cannot be written.
        """
        plan = self.planned.plan
        assert plan is not None
        report_html(
            self.profile(),
            plan,
            run_log=self.run_log(),
            machine=self.machine(),
            notes=[self.explain().notes()],
            path=path,
        )

    @in_turn
    def machine(self) -> dict[str, Any] | None:
        """Returns the memories and channels of the plan, in the form of `reprise.machine` files.

        The link between the ranks of a process group is a channel to a memory "ranks".

        Returns:
            The machine, or None if values cannot move and the step has no process group.
        """
        text = self._native.machine()
        return None if text is None else dict(json.loads(text))

    @in_turn
    def log_steps(self, steps: int = 5) -> None:
        """Measures the next steps run by run, for `run_log()` and for the report.

        Args:
            steps: The number of steps to measure.
        """
        self._native.log_steps(steps)

    @in_turn
    def run_log(self) -> RunLog | None:
        """Returns the measured times and bytes of the runs of the plan in force.

        Returns:
            The run log, or None if no step of this plan was measured.
        """
        text = self._native.run_log()
        return None if text is None else RunLog.from_json(text)

    @in_turn
    def report(self) -> StepReport:
        """Returns the peaks, the budget, the arena and the copies of the last step."""
        report = self._native.report()
        others = tuple(OtherDevice(*each) for each in report["other_devices"])
        more = {"other_devices": others, "overheads": self._overheads.last()}
        return StepReport(**(report | more))

    def __repr__(self) -> str:
        return f"CapturedStep({self._request.name!r}, {self.report()})"

    def _repr_html_(self) -> str:
        return fields_html(self.report())
