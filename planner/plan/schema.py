"""The plan file: what each chip holds and does, what that costs, and the proof of how good it is.

Keys carry their base unit (`_s`, `_bytes`). There is no clock and no path in a plan.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from planner.plan.ranks import RankView, view_of_rank

__all__ = [
    "FORMAT_VERSION",
    "TIGHT_FRACTION",
    "Certificate",
    "IdleChips",
    "InputDocument",
    "Inputs",
    "Island",
    "Pipeline",
    "Plan",
    "PlanModel",
    "PlanNotice",
    "Prediction",
    "Schedule",
    "Stage",
    "StageMemory",
    "StageTime",
    "TrainingEstimate",
    "Transfer",
    "plan_schema",
]

FORMAT_VERSION = "1.0"
TIGHT_FRACTION = 0.1
"""A stage with less of its usable memory left than this is marked tight."""

Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=10_000, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""Printable, on one line: a plan from a stranger must not steer the terminal."""
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PlanModel(BaseModel):
    """Base of every object in a plan: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def _without(document: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A document in which `keys` only stand when there is something: plans without a choice do not speak of it."""
    for key in keys:
        if document.get(key) is None:
            document.pop(key, None)
    return document


class InputDocument(PlanModel):
    """A normalised input, whole, so that the plan can be explained and solved again without its files."""

    name: Text
    """The name that the input gives itself."""
    sha256: Sha256
    """SHA-256 of the canonical JSON of `document`: sorted keys, no spaces, UTF-8."""
    document: dict[str, Any]
    """The cluster with the profiles it uses, or the model."""


class Inputs(PlanModel):
    """What was planned."""

    cluster: InputDocument
    """The chips."""
    model: InputDocument
    """The model and how it is trained."""


class Schedule(PlanModel):
    """The order of forward and backward actions on every stage."""

    name: Literal["gpipe", "1f1b", "eager_1f1b"]
    """Which order."""
    chunks: Count = 1
    """Shares of the layers that a stage holds (1 unless interleaved)."""


class StageMemory(PlanModel):
    """Memory of one chip of the stage at its peak."""

    peak_bytes: Bytes
    """The sum of `parts`."""
    usable_bytes: Bytes
    """The chip's memory less its reserve."""
    parts: dict[str, Bytes]
    """Bytes by purpose: weights, gradients, optimizer, activations (of all micro-batches in flight), transient (the
    largest working set), buffers (what neighbours send) and, with offloaded layers, staging (on the way to host memory
    and back)."""
    host_bytes: Bytes | None = None
    """Bytes of host memory that one chip takes: its offloaded optimizer states (on drives: buffers for them), and the
    offloaded activations of all micro-batches in flight. Absent: nothing is offloaded."""
    usable_host_bytes: Bytes | None = None
    """One chip's share of the host memory that training may use, for both together. Absent with `host_bytes`, and where
    the cluster file gives no `host_memory`."""
    nvme_bytes: Bytes | None = None
    """Bytes on the node's drives that one chip takes: optimizer states, and gradients that wait for the update. Absent:
    nothing is there."""
    usable_nvme_bytes: Bytes | None = None
    """One chip's share of what training may use of the drives. Absent with `nvme_bytes`."""

    @property
    def is_tight(self) -> bool:
        """Less than a tenth of what is usable is left: fragmentation or a library's buffer may be too much."""
        return self.peak_bytes > (1 - TIGHT_FRACTION) * self.usable_bytes

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(handler(self), "host_bytes", "usable_host_bytes", "nvme_bytes", "usable_nvme_bytes")


class StageTime(PlanModel):
    """Times of the stage for one micro-batch; reduction and optimizer once a step."""

    forward_s: Seconds
    """Forward pass, collectives included."""
    backward_input_s: Seconds
    """Gradients of the activations."""
    backward_weight_s: Seconds
    """Gradients of the weights."""
    recompute_s: Seconds
    """Forward work done again in the backward pass."""
    reduction_s: Seconds = 0.0
    """Exposed gradient reduction after the last micro-batch."""
    optimizer_s: Seconds = 0.0
    """Optimizer step."""
    communication_s: Seconds = 0.0
    """Collectives inside the layers, both ways; a part of the first four."""
    offload_forward_s: Seconds = 0.0
    """Waiting for activations on their way to host memory; a part of `forward_s`. Absent: 0."""
    offload_backward_s: Seconds = 0.0
    """Waiting for activations on their way back; a part of `backward_input_s`. Absent: 0."""

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        for key in ("offload_forward_s", "offload_backward_s"):
            if not document.get(key):
                document.pop(key, None)
        return document


class Stage(PlanModel):
    """The layers that one chip group of each replica holds."""

    node_group: Text
    """Name of the node group, as in the cluster."""
    chip: Text
    """Name of the chip's profile."""
    layers: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Names of the layers, in the order of the model."""
    chunk_layers: tuple[tuple[Text, ...], ...] | None = None
    """The layers of each chunk, when the schedule is interleaved."""
    tensor_parallel: Count
    """Chips that share each matrix."""
    context_parallel: Count = 1
    """Chips that share each sequence."""
    expert_parallel: Count = 1
    """Chips over which routed experts are spread."""
    zero: Annotated[int, Field(ge=0, le=3)] | None = None
    """ZeRO level. Absent where the model file leaves no choice: that of `training.zero`."""
    offload_optimizer: Literal["host", "nvme"] | None = None
    """Where its optimizer states are: in host memory, or on the node's drives. Absent: on the chips."""
    replicas: Count | None = None
    """Chip groups that share each micro-batch of one pipeline, each with its part of the sequences. Absent: one."""
    recompute: dict[str, Literal["selective", "full", "offload", "selective_offload", "full_offload"]] = Field(
        default_factory=dict
    )
    """Layers that keep less than everything for the backward pass, or keep it in host memory (`offload`: all that they
    would keep, `selective_offload` and `full_offload`: what the policy keeps); layers that are not named keep all."""
    in_flight: Count
    """Micro-batches whose activations the stage holds at its peak."""
    ranks: Annotated[tuple[Annotated[tuple[Index, ...], Field(min_length=1)], ...], Field(min_length=1)]
    """`ranks[i]`: the (tensor x context) chips of replica i, tensor fastest; chips are numbered in the order of the
    cluster's node groups, nodes and chips, idle ones included. With `replicas` of its own, those of one pipeline come
    one after the other."""
    memory: StageMemory
    """Memory of one chip."""
    time: StageTime
    """Times of one replica."""

    @model_serializer(mode="wrap")
    def _without_what_is_no_choice(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(handler(self), "zero", "offload_optimizer", "replicas")

    @property
    def num_replicas(self) -> int:
        """Chip groups that share each micro-batch of one pipeline."""
        return self.replicas or 1


class Transfer(PlanModel):
    """What one stage sends another directly, for one micro-batch."""

    from_stage: Index
    """The stage that sends activations on."""
    to_stage: Index
    """The stage that needs them; gradients come back the same way."""
    bytes: Bytes
    """Activations of one micro-batch, one way."""
    time_s: Seconds
    """Activations onward, latency included."""
    backward_time_s: Seconds
    """Their gradients back."""
    transport: Literal["rdma", "host"]
    """`rdma` goes from chip to chip, `host` is staged through host memory."""
    same_node: bool = False
    """Whether it stays inside a node, in every replica."""


class Pipeline(PlanModel):
    """A chain of stages that holds the whole model, and its identical replicas."""

    replicas: Count
    """How many there are."""
    micro_batches: Count
    """Micro-batches that each replica runs in a step."""
    micro_batch_size: Count
    """Sequences in a micro-batch."""
    schedule: Schedule
    """The order of the actions."""
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    """First stage first."""
    transfers: tuple[Transfer, ...] = ()
    """One for each pair of stages of which one feeds the other: neighbours, or whoever makes and needs a tensor."""
    reduction_s: Seconds
    """The longest exposed gradient reduction of a stage."""
    optimizer_s: Seconds
    """The longest optimizer step of a stage."""


class Island(PlanModel):
    """Chips that train synchronously."""

    name: Text
    """A name for people."""
    pipelines: Annotated[tuple[Pipeline, ...], Field(min_length=1)]
    """One for each shape."""


class IdleChips(PlanModel):
    """Chips of the cluster that the plan does not use."""

    node_group: Text
    """Name of the node group."""
    chips: Count
    """How many of its chips are idle."""


class Prediction(PlanModel):
    """What the cost model says about the whole."""

    step_time_s: Annotated[float, Field(gt=0)]
    """One optimizer step, from the first forward to the end of the last update."""
    tokens_per_s: Number
    """Tokens of the global batch over the step time."""
    tokens_per_s_per_chip: Number
    """The same over the chips that the plan uses (TGS)."""
    mfu: Number | None
    """Model FLOPs of a step (nothing recomputed) over what the used chips do in that time at dense peak;
    null when a chip's peak in the asked precision is not known."""
    bubble_fraction: Fraction
    """Share of the used chips' time in a step in which they run no forward, backward or update."""


class TrainingEstimate(PlanModel):
    """The whole training run, when the model file gives `training.tokens`; its price, when the cluster has one for
    every chip that the plan uses."""

    tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens to train on."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Optimizer steps, rounded up."""
    days: Number | None = None
    """`steps` at the predicted step time, without interruptions."""
    price_per_hour: Number | None = None
    """All chips that the plan uses; idle ones are not in it. Absent with the other two when one has no price."""
    price_per_million_tokens: Number | None = None
    """`price_per_hour` at the predicted rate."""
    cost: Number | None = None
    """`price_per_hour` over `days`."""
    currency: str | None = None
    """Of the three prices."""


class Certificate(PlanModel):
    """How good the plan can still become: `bound` holds for every plan in `plan_space`."""

    objective: Annotated[float, Field(gt=0)]
    """Step time in seconds, or money per token."""
    unit: Text
    """`s`, or currency per token such as `USD/token`."""
    bound: Number
    """No plan of the space is better than this."""
    gap: Fraction
    """(objective - bound) / objective."""
    gap_asked: Fraction | None = None
    """Where the search was told to stop."""
    identical_bound: Number | None = None
    """No plan of identical pipelines is better than this, where plans of several shapes were searched too: the part of
    the space that is searched best. Null where the space has nothing else."""
    why_stopped: Literal["gap", "time", "interrupted", "exhausted"]
    """`gap`: it closed, and no clock had a part in the plan.  `time`: the clock ended the search or a part of it, also
    where the gap closed after that.  `interrupted`: by a person.  `exhausted`: all that the search does was done, and
    the gap is not closed; more time changes nothing."""
    shares_used_up: tuple[Text, ...] | None = None
    """With `time`: the parts of the search that had used up their shares of the time limit, where the rest was done
    before the limit itself. Absent: the limit came."""
    plan_space: dict[str, Any]
    """Each dimension of the space that the bound speaks for."""
    solver: dict[str, Any] = Field(default_factory=dict)
    """What ran: names, versions, counts; no clock."""

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(handler(self), "shares_used_up")

    @property
    def is_as_close_as_asked(self) -> bool:
        """Whether the gap closed; False where nobody said how far it should."""
        return self.gap_asked is not None and self.gap <= max(self.gap_asked, 1e-6) * (1 + 1e-5)


class PlanNotice(PlanModel):
    """Something a reader of the plan must know."""

    code: Text
    """A short name, stable over versions."""
    message: Text
    """One sentence."""


class Plan(PlanModel):
    """Who runs which layers, how, and how fast it will be."""

    format: Literal["dplan-plan"] = "dplan-plan"
    """Says what the file is."""
    format_version: Literal["1.0"] = "1.0"
    """Readers refuse a version that they do not know."""
    inputs: Inputs
    """What was planned."""
    islands: Annotated[tuple[Island, ...], Field(min_length=1)]
    """Chips that train synchronously; one unless sites train apart."""
    outer_sync: None = None
    """How islands synchronise; null with one island."""
    tied_layers: tuple[Annotated[tuple[Text, ...], Field(min_length=2)], ...] = ()
    """Layers that share a matrix, its owner first: stages that hold one of them average that gradient too."""
    idle: tuple[IdleChips, ...] = ()
    """Chips that the plan leaves out."""
    prediction: Prediction
    """What the cost model says about the whole."""
    training: TrainingEstimate | None = None
    """The whole run, when the inputs say how long it is or what chips cost."""
    certificate: Certificate
    """The proof."""
    ignored_constraints: tuple[Literal["memory"], ...] = ()
    """Not empty when the search was told to ignore something: such a plan may not run."""
    assumptions: tuple[Text, ...] = ()
    """What the model and cost model took for granted, one sentence each."""
    warnings: tuple[PlanNotice, ...] = ()
    """What the inputs or the search warned about."""

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines of all islands, in order."""
        return tuple(pipeline for island in self.islands for pipeline in island.pipelines)

    @property
    def used_ranks(self) -> tuple[int, ...]:
        """Chips that work, ascending; a process rank is an index into this."""
        return tuple(
            sorted(
                rank
                for pipeline in self.pipelines
                for stage in pipeline.stages
                for replica in stage.ranks
                for rank in replica
            )
        )

    def for_rank(self, rank: int) -> RankView:
        """Everything that process `rank` needs; ranks run from 0 to the number of used chips less one."""
        return view_of_rank(self, rank)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan file; `-` is standard input. Raises InputError."""
        from planner.plan.file import load_plan

        return load_plan(os.fspath(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan atomically; `-` is standard output. Raises InputError when the place cannot be written."""
        from planner.plan.file import save_plan

        save_plan(self, os.fspath(path))


def plan_schema() -> dict[str, Any]:
    """The published JSON Schema of a plan file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Plan.model_json_schema(mode="validation")}
