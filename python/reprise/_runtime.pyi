"""Captured steps and planned chains of stages, in C++ on LibTorch.

Only `reprise._torch` imports this module, after a look at the version of PyTorch. Texts are JSON
forms, times are in nanoseconds, and sizes are in bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from torch import Tensor, dtype, nn
from typing_extensions import Unpack

def install_cpu_allocator() -> None:
    """Counts all CPU memory that tensors take from now on."""

def live_bytes(device: str = "cpu") -> int:
    """Returns the bytes of all live tensors on the device that were counted."""

def peak_bytes(device: str = "cpu") -> int:
    """Returns the largest live_bytes() since the last reset_peak()."""

def reset_peak(device: str = "cpu") -> None:
    """Sets peak_bytes() to the current live_bytes()."""

def alternatives() -> list[tuple[str, str, str, bool, bool]]:
    """Returns the fields of each Alternative."""

def last_refusal() -> tuple[str, int, int, int] | None:
    """Returns the message and the budget, live and requested bytes of the last refused request."""

def no_bytes() -> str:
    """Returns a text in the message of whoever takes the pointer of a tensor without bytes."""

def beyond_first_batch(first: int, inputs: int) -> str:
    """Returns the end of a message if these inputs have more bytes than the first ones, or ""."""

def drop_between_steps(tensors: Sequence[Tensor]) -> None:
    """Lets go of tensors as soon as no step is under way on any thread."""

def compile_regions_with(
    function: Callable[[list[str]], list[tuple[str, str, list[int], str]]],
) -> None: ...
def name_places(inside: list[str]) -> None:
    """Lets messages name the user's innermost line outside these folders."""

class Watched:
    """Dicts, classes of objects, and tensors whose changes are noticed by identity."""

    def __init__(self) -> None: ...
    def add(self, dicts: list[dict[str, Any]], objects: list[Any], tensors: list[Tensor]) -> int:
        """Watches these under the number that is returned."""

    def changed(self) -> list[int]:
        """Returns the numbers of those in which something has changed."""

    def renew(self, number: int) -> None:
        """Takes the state as it is now."""

def leave_recording(reason: str) -> None:
    """Lets a followed step that runs on this thread go on as plain training runs it."""

def touch_gradient(leaf: Tensor) -> None:
    """Tells a followed step that runs on this thread that its function looks at a gradient."""

def mark_random_state() -> int:
    """Returns a mark of the random state in a followed step of this thread, or -1 elsewhere."""

def return_to_random_state(mark: int) -> None:
    """Tells a followed step of this thread that its function sets the state of the mark."""

def host_copy(tensor: Tensor) -> Tensor:
    """Returns a copy of the tensor's bytes in host memory, as an operation of a followed step."""

class _PlanOptions(TypedDict, total=False):
    """Options of a plan of a captured step. None is as an option that is not given."""

    budget: int | str | None
    planner: str | None
    time_limit_ns: int
    threads: int
    enforce: bool
    arena: bool
    device_graph: bool
    offload: str | None
    machine: str | None
    offload_optimizer: bool
    offload_parameters: bool
    observer: Callable[[str, float, str], None] | None
    share_of: tuple[int, int] | None

class _CaptureOptions(TypedDict, total=False):
    """Options of a capture."""

    modules: Sequence[nn.Module]
    recapture: bool
    outcomes: int
    alternatives: Sequence[str] | None
    optimizer: object
    lockstep: str
    follow: bool
    budget: int | str | None
    name: str
    observer: Callable[[str, float, str], None] | None
    cache: str
    group: str
    bucket_cap: int
    shard_optimizer: bool
    other_devices: list[str]
    foreseen: Callable[[], int] | None
    share_work: str

class _RematOptions(TypedDict, total=False):
    """Options of a planned model. None is as an option that is not given."""

    budget: int | str | None
    planner: str | None
    time_limit_ns: int
    loss: Callable[[list[Tensor]], Tensor] | None
    alternatives: Sequence[str] | None
    name: str
    output_held: bool
    enforce: bool
    offload: str | None
    machine: str | None
    foreseen: Callable[[], int] | None
    observer: Callable[[str, float, str], None] | None

class CapturedStep:
    """A recorded step between lists of tensors."""

    def __init__(
        self,
        step: Callable[[list[Tensor]], list[Tensor]],
        sample: Sequence[Tensor],
        **options: Unpack[_CaptureOptions],
    ) -> None: ...
    @staticmethod
    def in_parts(
        part: Callable[[list[Tensor], float], list[Tensor]],
        body: Callable[[list[Tensor]], list[Tensor]] | None,
        sample: Sequence[Tensor],
        *,
        parts: Sequence[int],
        plan: dict[str, Any],
        capture: dict[str, Any],
    ) -> tuple[CapturedStep, int, list[tuple[int, dict[str, Any]]]]:
        """Returns the fastest step, the number of its parts, and each number with its result.

        `plan` and `capture` have the keyword arguments of plan() and of the constructor.
        """

    def plan(self, **options: Unpack[_PlanOptions]) -> dict[str, Any]:
        """Plans the step and returns the keyword arguments of PlanResult."""

    def plan_ahead(self, **options: Unpack[_PlanOptions]) -> None:
        """Plans a followed step so when it has been recorded."""

    def is_recorded(self) -> bool:
        """Says whether there is a recording. A followed step has none before its first run."""

    def shared_peak(self) -> tuple[int, int] | None:
        """Returns the peak that shares of budgets are of, and the bytes of its inputs."""

    def use(self, plan: str, **options: Unpack[_PlanOptions]) -> None:
        """Takes a plan from elsewhere."""

    def fetch_optimizer_state(self) -> None:
        """Brings the optimizer's state back to the device until the next run."""

    def fetch_parameters(self) -> None:
        """Brings parameters back to the device until the next run."""

    def machine(self) -> str | None:
        """Returns the memories of the plan, or None if values cannot move."""

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """Runs one step and returns all tensors that the function returns.

        Returns None, and leaves all as it was, if the step reads numbers on the host that no
        outcome was captured for.
        """

    def capture_outcome(self, inputs: Sequence[Tensor]) -> None:
        """Captures what the step does for the numbers that it reads now, beside the others."""

    def forget_outcome(self) -> None:
        """Drops the outcome that was captured last, if there are others."""

    def outcomes(self) -> list[int]:
        """Returns the numbers of the outcomes that are kept, the last one that ran in front."""

    def guards(self) -> list[str]:
        """Returns the names of the settings of PyTorch that are compared before each run."""

    def host_reads(self) -> list[str]:
        """Returns what the last outcome that ran reads on the host, in words."""

    def refusals(self) -> list[str]:
        """Returns what alternatives found in that outcome and do not offer, and why."""

    def synchronize(self, averages: bool) -> None:
        """Says whether the runs that follow average gradients over the process group."""

    def tell_failure(self, reason: str) -> None:
        """Lets the other ranks of the process group fail."""

    def first_difference(self, mine: str) -> str:
        """Returns the first difference that a rank has found, if they capture together again."""

    def overhead_count(self) -> int:
        """Returns how many captures and searches the runtime has noted so far."""

    def comparing(self) -> bool:
        """Returns whether the function runs now beside its recording, to be compared with it."""
    def check_codecs(self, check: str) -> None:
        """Says how the next runs treat what the plan encodes: "none", "compare" or "bypass"."""

    def approximate_values(
        self,
    ) -> list[tuple[str, str, int, int, float, float, float | None]]:
        """Returns the values that the plan encodes.

        Each has op, alternative, bytes, kept bytes, bound, largest element and error.
        """

    def cache_use(self) -> tuple[bool, str]:
        """Says whether the costs came from the cache, and what was wrong there."""

    def use_modules(self, modules: Sequence[nn.Module]) -> None:
        """Lets the runs that follow have these modules. Recordings for other ones stay."""

    def refresh(self) -> bool:
        """Takes over the train flags of all modules.

        Returns False if a module has other children, parameters or buffers than when the step was
        captured.
        """

    def planned(self) -> dict[str, Any]:
        """Returns the keyword arguments of PlanResult for the plan in force."""

    def graph(self) -> str:
        """Returns the recorded step as a graph."""

    def profile(self) -> str:
        """Returns the measured problem, and how it was measured."""

    def log_steps(self, steps: int) -> None:
        """Measures the next steps run by run."""

    def run_log(self) -> str | None:
        """Returns the run log of the plan in force, or None if no step was measured."""

    def report(self) -> dict[str, Any]:
        """Returns the keyword arguments of StepReport, and those of OtherDevice as tuples."""

class _PlannedStages:
    """What planned models of one chain and of several branches have alike."""

    def set_budget(self, budget: int | str | None) -> None:
        """Sets the budget for the next steps."""

    def overhead_count(self) -> int:
        """Returns how many measurements and searches the runtime has noted so far."""

    def refresh(self) -> bool:
        """Takes over the train flags of all modules.

        Returns False if a module has other children, parameters or buffers than when the model was
        made.
        """

    def planned(self) -> dict[str, Any]:
        """Returns the keyword arguments of PlanResult for the plan in force."""

    def report(self) -> dict[str, Any]:
        """Returns the keyword arguments of StepReport."""

class Remat(_PlannedStages):
    """A planned chain of stages between lists of tensors.

    A stage is a tuple: its name, its function, and the modules that the function uses.
    """

    def __init__(
        self,
        stages: Sequence[tuple[str, Callable[[list[Tensor]], list[Tensor]], Sequence[nn.Module]]],
        sharded: tuple[
            str,
            Sequence[Tensor],
            Callable[[], Sequence[Tensor]],
            Sequence[tuple[Callable[[Tensor], bool], Callable[[], Callable[[], None]]] | None],
        ]
        | None,
        shared: tuple[str, Sequence[Callable[[list[Tensor]], list[Tensor]] | None]] | None,
        **options: Unpack[_RematOptions],
    ) -> None: ...
    def machine(self) -> str | None:
        """Returns the memories of the plan, or None if there is the device alone."""

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Runs the forward half of a planned step. The backward half is a node of autograd."""

    def plan_for(self, inputs: Sequence[Tensor]) -> None:
        """Measures and plans for inputs like these, without running a step."""

    def chain(self) -> str:
        """Returns the measured chain."""

    def profile(self) -> str:
        """Returns the measured problem, and how it was measured."""

    def log_steps(self, steps: int) -> None:
        """Measures the next steps run by run."""

    def run_log(self) -> str | None:
        """Returns the run log of the plan in force, or None if no step was measured."""

class RematJoin(_PlannedStages):
    """Planned branches of stages that meet in one loss, between lists of tensors.

    A stage is a tuple, as for `Remat`. A branch is its name and its stages.
    """

    def __init__(
        self,
        branches: Sequence[
            tuple[
                str,
                Sequence[tuple[str, Callable[[list[Tensor]], list[Tensor]], Sequence[nn.Module]]],
            ]
        ],
        tail: Sequence[tuple[str, Callable[[list[Tensor]], list[Tensor]], Sequence[nn.Module]]],
        **options: Unpack[_RematOptions],
    ) -> None: ...
    def forward(self, inputs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Runs the forward half of a planned step. The backward half is a node of autograd."""

    def plan_for(self, inputs: Sequence[Sequence[Tensor]]) -> None:
        """Measures and plans for inputs like these, without running a step."""

    def join(self) -> str:
        """Returns the measured join."""

class PipelinePart:
    """A part that the schedules of PyTorch run, with several micro-batches under way at a time."""

    def __init__(
        self,
        stages: Sequence[tuple[str, Callable[[list[Tensor]], list[Tensor]], Sequence[nn.Module]]],
        sample: Sequence[Tensor],
        *,
        name: str,
    ) -> None: ...
    def refresh(self) -> bool:
        """Takes over the train flags of all modules.

        Returns False if a module has other children, parameters or buffers than when the part was
        made.
        """

    def not_split(self) -> list[tuple[str, str]]:
        """Returns the stages whose backward cannot be split, and why."""

    def outputs(self) -> list[Tensor]:
        """Returns the outputs of a micro-batch on the device meta."""

    def keep_everything(self, micro_batches: int) -> None:
        """Takes a plan that keeps all that backwards need."""

    def begin_step(self) -> None:
        """Begins a step."""

    def end_step(self) -> None:
        """Ends the step."""

    def abort_step(self) -> None:
        """Ends a step that failed, and drops the gradients of the parameters."""

    def forward(self, micro_batch: int, input: Sequence[Tensor]) -> list[Tensor]:
        """Runs the forward of a micro-batch and returns its outputs."""

    def input_gradient(self, micro_batch: int, gradient: Sequence[Tensor]) -> list[Tensor]:
        """Runs its backward for these gradients of the outputs that want one.

        Returns the gradients of the inputs that want one. The weight gradients are left for later
        where they can be split.
        """

    def weight_gradient(self, micro_batch: int) -> None:
        """Runs what input_gradient() has left."""

class PipelinedStep:
    """A training step in parts on the ranks of a group."""

    def __init__(
        self,
        parts: Sequence[
            Sequence[tuple[str, Callable[[list[Tensor]], list[Tensor]], Sequence[nn.Module]]]
        ],
        *,
        micro_batches: int,
        sample: Sequence[Tensor],
        loss: Callable[[list[Tensor], list[Tensor]], Tensor] | None,
        target: Sequence[Tensor],
        budget: int | str | None,
        planner: str | None,
        group: str,
        timeout: float | None,
        link_bytes_per_second: int,
        time_limit_ns: int,
        name: str,
        output_structure: Callable[[int], str],
        input_structure: Callable[[int, str], None],
    ) -> None: ...
    def refresh(self) -> bool:
        """Takes over the train flags of all modules. Returns False as PipelinePart.refresh()."""

    def run(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor | None:
        """Runs a step. Returns the losses on the rank of the last part."""

    def use(self, plan: str) -> None:
        """Puts another plan in force."""

    def tell_failure(self, reason: str) -> None:
        """Lets the other ranks hear that this one has failed."""

    def problem(self) -> str:
        """Returns the measured pipeline."""

    def plan(self) -> str:
        """Returns the plan in force."""

    def not_split(self) -> list[str]:
        """Returns the stages whose backward cannot be split, with the reasons."""

    def report(self) -> dict[str, Any]:
        """Returns the keyword arguments of PipelineReport."""

def tell_failure(group: str, reason: str) -> None:
    """Lets the other ranks of a group hear that this one fails before it has a step."""

def profile(
    stages: Sequence[tuple[str, Callable[[list[Tensor]], list[Tensor]], Sequence[nn.Module]]],
    sample: Sequence[Tensor],
    **options: Unpack[_RematOptions],
) -> str:
    """Measures stages into a chain and returns the profile."""

class Online:
    """Runs training steps in online mode."""

    def __init__(
        self,
        *,
        budget: int | str | None,
        heuristic: str,
        smallest: int,
        device: str,
        plan_after: int,
        plans: int,
        time_limit_ns: int,
        planning_share: float,
        plan_in_background: bool,
    ) -> None: ...
    def begin(self) -> None:
        """Begins a step on this thread."""

    def end(self) -> None:
        """Ends the step. If it raises, the step is not over."""

    def undo(self) -> None:
        """Undoes the step."""

    def fail(self, message: str) -> None:
        """Undoes the step after an exception with this message.

        Raises the reason behind it, if it only says that an operation found an operand missing.
        """

    def wait_for_plan(self) -> None:
        """Waits for the search in the background, if one is under way."""

    def stop_planning(self) -> None:
        """Ends the search in the background, and begins no other."""

    def report(self) -> dict[str, Any]:
        """Returns the keyword arguments of OnlineReport."""

def online_heuristics() -> list[tuple[str, str]]:
    """Returns the names of the heuristics, and what they are."""

class TiledFunction:
    """An element-wise function that runs tile by tile."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        *,
        keep_operands: bool,
        storage: dtype | None,
        tile: int,
    ) -> None: ...
    @staticmethod
    def activation(name: str, *, keep_operands: bool, storage: dtype | None) -> TiledFunction:
        """Returns one of activations(), whose function is C++."""

    def run(self, operands: Sequence[Tensor]) -> Tensor:
        """Returns the function of these operands."""

def activations() -> list[tuple[str, str, int]]:
    """Returns the name, the formula and the number of operands of each activation."""

def few_bit(name: str, x: Tensor, bits: int) -> Tensor:
    """Returns an activation of which autograd keeps so many bits an element."""

def few_bit_table(name: str, bits: int) -> tuple[list[float], list[float]]:
    """Returns the boundaries and the levels of the steps of an activation."""

def few_bit_activations() -> list[tuple[str, str, int]]:
    """Returns the name, the formula and the only number of bits, or 0, of each activation."""

def svd_halves(a: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Returns the halves of the matrix of rank `keep` that is nearest."""

def safe_svd(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns u, s and v."""

def svd_tangent(
    of: tuple[Tensor, Tensor, Tensor], da: Tensor, keep: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the changes of u, s and v along `da`."""

def write_tensors(path: str, metadata: dict[str, str], tensors: list[tuple[str, Tensor]]) -> None:
    """Writes a file of tensors as a whole, or leaves it as it is."""

def tensor_type(tensor: Tensor, name: str) -> str:
    """Returns the type of a tensor's elements in files. Raises InputError if there is none."""

def plan_sha256(text: str) -> str:
    """Returns the hash of a plan."""

def tensor_checksum(tensor: Tensor) -> int:
    """Returns the CRC-32C of a tensor's elements."""

def file_checksum(path: str) -> tuple[int, str]:
    """Returns the size of a file and its CRC-32C in hexadecimal digits."""

class TensorFile:
    """A file of tensors, open for reading."""

    def __init__(self, path: str) -> None: ...
    def metadata(self) -> dict[str, str]:
        """Returns the texts of the file."""

    def tensors(self) -> list[tuple[str, str, list[int]]]:
        """Returns the name, the type and the shape of each tensor."""

    def verify(self) -> None:
        """Compares the checksums. Raises InputError if the file is damaged."""

    def read(self, name: str) -> Tensor:
        """Returns a tensor of the file."""

    def read_into(self, name: str, tensor: Tensor) -> None:
        """Reads a tensor of the file into one of the same shape and type."""

class Reversible:
    """A reversible network. Two branches are a block.

    A branch is a tuple: its name, its function, and the modules that the function uses.
    """

    def __init__(
        self,
        branches: Sequence[tuple[str, Callable[[list[Tensor]], list[Tensor]], Sequence[nn.Module]]],
        *,
        fixed: bool,
        fraction_bits: int,
    ) -> None: ...
    def run(self, x1: Tensor, x2: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
        """Returns the two results."""

    def refresh(self) -> bool:
        """Takes over the train flags of all modules.

        Returns False if a module has other children, parameters or buffers than when the network
        was made.
        """

def in_place_abn(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    *,
    activation: str,
    parameter: float,
    eps: float,
    momentum: float,
    guard: float,
) -> Tensor:
    """Returns a batch norm and its activation, of which autograd keeps the result."""

class Encoded:
    """A tensor in a few bits an element."""

    @property
    def bytes(self) -> int:
        """The bytes of codes and ranges."""

    def largest_error(self) -> float:
        """Returns the largest error of an element."""

def encode(x: Tensor, *, bits: int, group: int, stochastic: bool, seed: int, codec: str) -> Encoded:
    """Returns a tensor in a few bits an element."""

def decode(encoded: Encoded) -> Tensor:
    """Returns the tensor, up to its error."""

def xconv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    probes: int,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    seed: int | None,
) -> Tensor:
    """Returns a convolution of which autograd keeps projections of the input."""

def finite_depth(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str
) -> Tensor:
    """Returns all blocks of a machine of finite depth."""
