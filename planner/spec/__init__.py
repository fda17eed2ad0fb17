"""What people write: cluster, model and profile files, read into base units with every mistake explained."""

from __future__ import annotations

from planner.spec.cluster import DEFAULT_HOST_STAGING_BYTES_PER_S, Cluster, LinkPath, NodeGroup
from planner.spec.cluster_reader import load_cluster, parse_cluster
from planner.spec.constraints import Constraints
from planner.spec.drives import Drives
from planner.spec.explicit_graph import ExplicitGraph, GraphEdge, GraphNode, LayerTimes
from planner.spec.links import Link, Sites
from planner.spec.model import ModelSpec, Training
from planner.spec.model_reader import load_model, parse_model
from planner.spec.profile import Chip, Efficiency, Interconnect, Measured, Precision
from planner.spec.profiles import load_profile, profile_names
from planner.spec.schema import schema_for
from planner.spec.shipped import shipped_dir, shipped_names
from planner.spec.templates import CLUSTER_TEMPLATE, MODEL_TEMPLATE

__all__ = [
    "CLUSTER_TEMPLATE",
    "DEFAULT_HOST_STAGING_BYTES_PER_S",
    "MODEL_TEMPLATE",
    "Chip",
    "Cluster",
    "Constraints",
    "Drives",
    "Efficiency",
    "ExplicitGraph",
    "GraphEdge",
    "GraphNode",
    "Interconnect",
    "LayerTimes",
    "Link",
    "LinkPath",
    "Measured",
    "ModelSpec",
    "NodeGroup",
    "Precision",
    "Sites",
    "Training",
    "load_cluster",
    "load_model",
    "load_profile",
    "parse_cluster",
    "parse_model",
    "profile_names",
    "schema_for",
    "shipped_dir",
    "shipped_names",
]
