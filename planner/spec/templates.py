"""The files that `dplan init` writes to start from."""

from __future__ import annotations

__all__ = ["CLUSTER_TEMPLATE", "MODEL_TEMPLATE"]

CLUSTER_TEMPLATE = """\
# The chips there are. Every quantity carries its unit: 80 GiB, 400 Gbps, 5 us. GB is 10^9 bytes, GiB is 2^30 bytes.
name: my-cluster

node_groups:                         # identical nodes of one chip; ranks are numbered in this order
  - name: h100
    chip: nvidia-h100-80gb-sxm       # `dplan chips` lists the profiles; chips per node, links and NICs come from there
    nodes: 2
  - name: a100
    chip: nvidia-a100-80gb-sxm
    nodes: 4
    # chips_per_node: 8              # where your nodes differ from the profile
    # nic: {bandwidth: 100 Gbps}     # per chip, one direction
    # nic_affinity: {nics: 4}        # chips 0 and 1 of a node near NIC 0, chips 2 and 3 near NIC 1, ...
    # reserve: 4 GiB                 # memory of each chip that stays free; 6 % unless you say otherwise
    # host_memory: 1.5 TiB           # of a node, with host_memory_bandwidth: for `offload_optimizer`
    # nvme: {capacity: 7 TiB, read: 12 GB/s, write: 6 GB/s}   # its drives together, for the same

links:                               # between two node groups; a pair without one has the slower of the two NICs
  - {between: [h100, a100], bandwidth: 100 Gbps, latency: 10 us}   # transport: rdma in a vendor, host between two

# Groups at different sites (`site: east` in a group) need the line between them. `total` is what it carries each way
# for all pairs of chips together; `bandwidth`, here and in `links`, is for one pair (absent: the slower NIC).
# sites: {total: 10 Gbps, latency: 20 ms}

# Switches above the nodes, where their uplinks carry less than what enters from below; each takes the next nodes:
# topology:
#   - {name: rack, count: 2, nodes: {h100: 1, a100: 2}, oversubscription: 4, latency: 1 us}   # or `uplink: 400 Gbps`

# Prices per chip-hour, for `--objective cost` and the cost of a training run:
# prices:
#   nvidia-h100-80gb-sxm: 2.50 USD/h
#   nvidia-a100-80gb-sxm: 1.30 USD/h

# Your own chips, or changes to shipped ones:
# chips:
#   my-chip: {memory: 64 GiB, peak: {bf16: 280 TFLOPS}, memory_bandwidth: 1.6 TB/s, chips_per_node: 8,
#             intra_node: {bandwidth: 200 GB/s, latency: 3 us}, nic: {bandwidth: 200 Gbps, latency: 5 us}}
#   a100-half: {base: nvidia-a100-80gb-sxm, memory: 40 GiB}
"""

MODEL_TEMPLATE = """\
# What is trained and how.
model: {preset: llama-3.1-8b}
# model: {config: ./config.json}     # a Hugging Face config.json
# model: {dimensions: {num_hidden_layers: 32, hidden_size: 4096, num_attention_heads: 32, intermediate_size: 14336,
#                      vocab_size: 128256}}

training:
  sequence_length: 8192              # tokens
  global_batch: 512                  # sequences; or a multiple of the sequence length, like `4194304 tokens`
  # Everything below shows its default.
  # micro_batch_sizes: [1, 2, 4, 8]  # sequences
  # precision: bf16                  # bf16, fp16, fp32, fp8
  # optimizer: adamw                 # adamw, sgd, adafactor, muon; states in fp32
  # zero: 1                          # 0, 1, 2, 3; or a list, to choose from for each node group
  # offload_optimizer: never         # never, allowed, always: states in host memory, on drives; or [none, nvme]
  # stage_replicas: [1]              # chip groups that share each micro-batch of a stage, such as [1, 2, 4]
  # recompute: [none, selective, full]   # more: offload, selective_offload, full_offload
  # schedules: [1f1b]                # gpipe, 1f1b, eager_1f1b
  # tokens: 15 T tokens              # no default; turns a plan into days and total cost

# What the search must keep to; everything else stays free:
# constraints:
#   tensor_parallel: {h100: 4, a100: [2, 4]}
#   use: [a100]                      # node groups that must work
#   idle: []                         # node groups that must not

# Layers that are not trained:
# frozen: [embedding]
"""
