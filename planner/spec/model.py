"""A model and its training, resolved. What a model's layers are is the graph room's business."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from planner.errors import Notice
from planner.spec.base import SpecModel, Tokens, distinct, filled, refusal, whole_number
from planner.spec.constraints import Constraints
from planner.spec.explicit_graph import ExplicitGraph
from planner.spec.kinds import QuantityError
from planner.spec.profile import Precision
from planner.spec.suggest import did_you_mean
from planner.spec.units import parse_batch

__all__ = [
    "KNOWN_SCHEDULES",
    "LATER_SCHEDULES",
    "ModelSpec",
    "Optimizer",
    "RecomputePolicy",
    "Schedule",
    "StateTier",
    "Training",
]

Optimizer = Literal["adamw", "sgd", "adafactor", "muon"]
RecomputePolicy = Literal["none", "selective", "full", "offload", "selective_offload", "full_offload"]
Schedule = Literal["gpipe", "1f1b", "eager_1f1b"]
StateTier = Literal["none", "host", "nvme"]
"""Where optimizer states are: on the chips, in the host's memory, on the node's drives."""

KNOWN_SCHEDULES = ("gpipe", "1f1b", "eager_1f1b")
LATER_SCHEDULES = ("interleaved_1f1b", "zb_h1", "zb_v", "dualpipe_v")
"""Schedules that are known but can only be timed by simulation."""


def _read_schedule(value: Any) -> Any:
    if value in KNOWN_SCHEDULES:
        return value
    if value in LATER_SCHEDULES:
        why = "it comes with the simulation; its closed forms are not exact"
        raise refusal(QuantityError(f"schedule '{value}' cannot be planned yet", why, "use 1f1b, eager_1f1b or gpipe"))
    fix = did_you_mean(str(value), (*KNOWN_SCHEDULES, *LATER_SCHEDULES), "known schedules")
    raise refusal(QuantityError(f"unknown schedule '{str(value)[:40]}'", "", fix))


_ZeroLevel = Annotated[
    Literal[0, 1, 2, 3], whole_number("the ZeRO level", 0, 3, "1"), WithJsonSchema({"enum": [0, 1, 2, 3]})
]


_OFFLOAD_WORDS = ("never", "allowed", "always")
_TIERS: tuple[StateTier, ...] = ("none", "host", "nvme")


def _read_offload_word(value: Any) -> Any:
    if value in _TIERS:
        why = "where optimizer states may be is a list"
        fix = f"write [{value}], or [none, {value}] to let node groups choose" if value != "none" else "write never"
        raise refusal(QuantityError(f"'{value}' is one tier alone", why, fix))
    if value not in _OFFLOAD_WORDS:
        fix = "write never, allowed, always, or a list of none, host, nvme"
        raise refusal(QuantityError(f"'{str(value)[:40]}' does not say where optimizer states may be", "", fix))
    return value


def _read_tiers(tiers: tuple[StateTier, ...]) -> str | tuple[StateTier, ...]:
    """Nearest first; a list that one of the words says is that word."""
    ordered = tuple(tier for tier in _TIERS if tier in tiers)
    words = {("none",): "never", _TIERS: "allowed", _TIERS[1:]: "always"}
    return words.get(ordered, ordered)


_StateTiers = Annotated[tuple[StateTier, ...], filled("tier", 3), AfterValidator(distinct), AfterValidator(_read_tiers)]


def _one_or_some(value: Any) -> str:
    return "~some" if isinstance(value, (list, tuple)) else "~one"


def _read_levels(levels: tuple[int, ...]) -> int | tuple[int, ...]:
    """Ascending; a list of one is that one."""
    return levels[0] if len(levels) == 1 else tuple(sorted(levels))


_ZeroLevels = Annotated[
    tuple[_ZeroLevel, ...], filled("ZeRO level", 4), AfterValidator(distinct), AfterValidator(_read_levels)
]
_Zero = Annotated[
    Annotated[_ZeroLevel, Tag("~one")] | Annotated[_ZeroLevels, Tag("~some")], Discriminator(_one_or_some)
]
_OffloadOptimizer = Annotated[
    Annotated[Literal["never", "allowed", "always"], BeforeValidator(_read_offload_word), Tag("~one")]
    | Annotated[_StateTiers, Tag("~some")],
    Discriminator(_one_or_some),
]
_Sequence = Annotated[
    int, whole_number("the sequence length", 1, 100_000_000), WithJsonSchema({"type": "integer", "minimum": 1})
]
_Batch = Annotated[
    int,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^[\d.]+\s*[kMBT]?\s+(tokens|sequences)$"},
            ]
        }
    ),
]
_Schedules = Annotated[
    tuple[Annotated[Schedule, BeforeValidator(_read_schedule)], ...], filled("schedule", 8), AfterValidator(distinct)
]
_Policies = Annotated[tuple[RecomputePolicy, ...], filled("recompute policy", 6), AfterValidator(distinct)]
_Number = Annotated[
    int, whole_number("a number of this list", 1, 1_000_000), WithJsonSchema({"type": "integer", "minimum": 1})
]
_Numbers = Annotated[
    tuple[_Number, ...],
    filled("number", 64),
    AfterValidator(distinct),
    AfterValidator(lambda numbers: tuple(sorted(numbers))),
]


def _divide_each_other(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Stages that send each other tensors split them evenly."""
    for small, large in pairwise(numbers):
        if large % small:
            why = "sequences go from the replicas of one stage to those of the next in equal parts"
            raise refusal(QuantityError(f"{small} does not divide {large}", why, "use numbers such as [1, 2, 4]"))
    return numbers


_StageReplicas = Annotated[_Numbers, AfterValidator(_divide_each_other)]
_Flag = Annotated[bool, Field(strict=True)]


class Training(SpecModel):
    """How the model is trained."""

    sequence_length: _Sequence = Field(examples=["4096"])
    """Tokens in a sequence."""

    global_batch: _Batch = Field(examples=["2048"])
    """Sequences in an optimizer step; `8388608 tokens` is converted and must be a multiple of the sequence length."""

    micro_batch_sizes: _Numbers = (1, 2, 4, 8)
    """Micro-batch sizes to choose from, in sequences."""

    precision: Precision = "bf16"
    """What training computes in. A chip without it in hardware is left out."""

    optimizer: Optimizer = "adamw"
    """The optimizer; its states are fp32."""

    master_weights: Literal["fp32", "none"] = Field(default="fp32", validate_default=True)
    """A second copy of the weights for the optimizer. With precision `fp32` the weights are the masters: `none`."""

    gradients: Literal["fp32", "compute"] = "fp32"
    """What gradients are kept and summed in: fp32, or the compute precision."""

    zero: _Zero = Field(default=1, examples=["[1, 3]"])
    """ZeRO level over the data parallel chips: 0 nothing, 1 optimizer states, 2 also gradients, 3 also weights. A list:
    levels to choose from, for each node group; pipelines are of one shape then, as with 2 and 3."""

    offload_optimizer: _OffloadOptimizer = Field(default="never", examples=["[none, nvme]"])
    """Whether optimizer states leave the chips and are updated by the host: `allowed` lets each node group choose,
    `always` lets none keep them. They go to host memory (needs `host_memory` and `host_memory_bandwidth` of the node
    group) or to drives (needs `nvme` beside). A list says which tiers there are to choose from: `none`, `host`,
    `nvme`."""

    recompute: _Policies = ("none", "selective", "full")
    """Recompute policies that each layer may choose from. `offload`, `selective_offload` and `full_offload` send what
    `none`, `selective` and `full` keep to the host's memory until the backward pass; not used unless listed."""

    schedules: _Schedules = ("1f1b",)
    """Pipeline schedules to choose from."""

    sequence_parallel: _Flag = True
    """Split norms and dropout along the sequence wherever tensor parallelism is used."""

    context_parallel: _Numbers = (1,)
    """Context parallel degrees to choose from."""

    expert_parallel: _Numbers | None = None
    """Expert parallel degrees to choose from. Absent: every degree up to the number of experts."""

    attention: Literal["flash", "math"] = "flash"
    """The attention kernel: `flash` never holds the scores; `math` keeps them, quadratic in the sequence length."""

    loss: Literal["plain", "chunked", "fused"] = "plain"
    """How logits are held: all at once, in chunks of tokens, or never."""

    dropout: _Flag | None = None
    """Whether dropout masks are kept. Absent: as the architecture has it."""

    stage_replicas: _StageReplicas = Field(default=(1,), examples=["[1, 2, 4]"])
    """How many chip groups may share each micro-batch of one pipeline's stage, each with its part of the sequences, to
    choose from for each node group: stages of one pipeline then differ in their data parallel degree. Pipelines are of
    one shape then."""

    tokens: Tokens | None = Field(default=None, examples=["15 T tokens"])
    """Tokens to train on, e.g. `15 T tokens`: turns a plan into days and total cost."""

    @field_validator("global_batch", mode="before")
    @classmethod
    def _read_batch(cls, value: Any, info: ValidationInfo) -> int:
        try:
            number, word = parse_batch(value)
            length = info.data.get("sequence_length")
            if word == "sequences" or length is None:
                return number
            if number % length:
                near = max(length, round(number / length) * length)
                why = f"a batch has whole sequences of {length} tokens"
                raise QuantityError(f"'{value}' is no multiple of the sequence length", why, f"write '{near} tokens'")
            return int(number // length)
        except QuantityError as error:
            raise refusal(error) from None

    @field_validator("global_batch", mode="after")
    @classmethod
    def _limit_batch(cls, value: int) -> int:
        if value > 100_000_000:
            raise refusal(QuantityError(f"{value} sequences are absurdly many", "a batch has at most 100000000"))
        return value

    @field_validator("micro_batch_sizes", mode="after")
    @classmethod
    def _some_size_fits(cls, value: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        batch = info.data.get("global_batch")
        if batch is not None and min(value) > batch:
            why = f"the global batch has {batch} sequences"
            raise refusal(QuantityError("no micro-batch fits the global batch", why, "allow a smaller size"))
        return value

    @model_serializer(mode="wrap")
    def _without_what_nobody_asks_for(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A document that says nothing new stays as it always was."""
        document: dict[str, Any] = handler(self)
        if self.offload_optimizer == "never":
            document.pop("offload_optimizer", None)
        if self.stage_replicas == (1,):
            document.pop("stage_replicas", None)
        return document

    @field_validator("master_weights", mode="after")
    @classmethod
    def _fp32_is_its_own_master(cls, value: str, info: ValidationInfo) -> str:
        return "none" if info.data.get("precision") == "fp32" else value


class ModelSpec(SpecModel):
    """What is trained and how."""

    name: str
    """The model's name."""

    source: Literal["config", "preset", "dimensions", "graph"]
    """Where the layers come from."""

    architecture: dict[str, Any] = Field(default_factory=dict)
    """The Hugging Face fields as written (`config`, `dimensions`), `{"preset": name}`, or nothing (`graph`)."""

    graph: ExplicitGraph | None = None
    """The layers themselves, with source `graph`."""

    training: Training
    """How it is trained."""

    constraints: Constraints = Constraints()
    """What the user fixed."""

    frozen: tuple[str, ...] = ()
    """Layers that are not trained: names, or patterns such as `layers.1?` or `encoder.*`."""

    notices: tuple[Notice, ...] = Field(default=(), exclude=True, repr=False)
    """What a reader of a plan must know. Not part of the model's identity."""

    file: str = Field(default="", exclude=True, repr=False)
    """The model file, as messages name it; empty without one. Not part of the model's identity."""

    config_file: str = Field(default="", exclude=True, repr=False)
    """The file that `architecture` was read from, with source `config`. Not part of the model's identity."""

    @model_validator(mode="after")
    def _has_its_layers(self) -> ModelSpec:
        if (self.source == "graph") != (self.graph is not None):
            raise ValueError("a model has a graph with the source `graph`, and with no other")
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelSpec) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]
