"""How parallel degrees divide weights, work and activations of a stage."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Degrees", "ExpertLayout", "expert_layout"]


@dataclass(frozen=True)
class ExpertLayout:
    """Where routed experts live among a stage's chips.

    tensor: chips that share one expert.  shards: chips over which all experts together are spread.
    replicas: how often the same expert shard exists.  all_to_all: chips that exchange tokens.
    """

    tensor: int
    shards: int
    replicas: int
    all_to_all: int


def expert_layout(expert: int, tensor: int, context: int, data: int, num_experts: int) -> ExpertLayout | str:
    """Spread experts over a stage's t x c x d chips, `expert` (e) ways; a sentence when that is impossible.

    e a multiple of t: every expert is whole on one chip; e/t divides c d;                shards = e
    otherwise:         every expert is divided over the tensor group; e divides c d;      shards = e t
    Weights of all experts together divide by `shards`; a shard has t c d / shards replicas.
    Source: Megatron-LM, whose routed weights divide by expert_model_parallel_size x expert_tensor_parallel_size.
    """
    sequence_chips = context * data
    if num_experts == 0:
        if expert != 1:
            return f"expert_parallel {expert} needs routed experts; the model has none"
        return ExpertLayout(tensor, tensor, sequence_chips, 1)
    if num_experts % expert:
        return f"expert_parallel {expert} does not divide num_experts {num_experts}"
    if expert % tensor == 0:
        if sequence_chips % (expert // tensor):
            return (
                f"expert_parallel {expert} with tensor_parallel {tensor} needs a multiple of {expert // tensor}"
                f" replicas (context_parallel x data_parallel); a stage has {sequence_chips}"
            )
        return ExpertLayout(1, expert, tensor * sequence_chips // expert, expert)
    if sequence_chips % expert:
        return (
            f"expert_parallel {expert} does not divide the {sequence_chips} replicas of a stage"
            " (context_parallel x data_parallel)"
        )
    return ExpertLayout(tensor, expert * tensor, sequence_chips // expert, expert)


@dataclass(frozen=True)
class Degrees:
    """Parallel degrees of one stage."""

    tensor: int
    context: int
    data: int
    sequence_parallel: bool
    expert: ExpertLayout

    @property
    def replicas(self) -> int:
        """Chips that hold the same (not routed) weight: its gradient is summed over data and context parallel chips."""
        return self.data * self.context

    def work_divisor(self, sharding: str) -> int:
        """Chips over which one sequence's work or activation is divided.

        tensor, expert: t.  sequence: t with sequence parallelism, else 1.  replicated: 1.  All times c.
        """
        if sharding == "replicated" or (sharding == "sequence" and not self.sequence_parallel):
            return self.context
        return self.tensor * self.context

    def weight_divisor(self, sharding: str) -> int:
        """Chips over which a weight is divided: tensor t, expert the expert shards, others 1 (norms, routers)."""
        if sharding == "tensor":
            return self.tensor
        return self.expert.shards if sharding == "expert" else 1

    def weight_replicas(self, sharding: str) -> int:
        """Chips over which ZeRO divides a weight's states and over which its gradient is summed."""
        return self.expert.replicas if sharding == "expert" else self.replicas
