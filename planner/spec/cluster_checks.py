"""Cross-references of a cluster file: links, sites, prices, and whether every pair of groups is joined."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from planner.errors import Notice
from planner.spec.cluster import DEFAULT_HOST_STAGING_BYTES_PER_S, Cluster, NodeGroup
from planner.spec.cluster_file import ClusterFile
from planner.spec.links import Link, LinkFigures, Sites
from planner.spec.nic_affinity import FAR_NIC_LOSS
from planner.spec.printing import format_rate
from planner.spec.profiles import profile_names, unknown_chip_advice
from planner.spec.reading import node_at
from planner.spec.suggest import did_you_mean
from planner.spec.tree import ListNode, MapNode, ScalarNode
from planner.spec.units import QuantityError, parse_price

if TYPE_CHECKING:
    from planner.spec.cluster_chips import ChipFinder
    from planner.spec.reading import Collector

__all__ = ["check_links", "check_paths", "check_prices", "check_sites", "notices_of", "used_prices"]

_DOUBTFUL = {
    "low": "its figures have no trustworthy source",
    "medium": "some of its figures have no trustworthy source",
    "announced": "its figures are announced, not measured",
    "reconstructed": "its figures are reconstructed from published results",
}


def check_links(collector: Collector) -> None:
    """Every link joins two different, known groups, once."""
    groups = [name for _, name in collector.texts(("node_groups",), "name")]
    _check_pairs(collector, ("links",), sorted(set(groups)), "node group")


def check_sites(collector: Collector) -> None:
    """Every site link joins two different sites that groups stand at, once."""
    sites = {name for _, name in collector.texts(("node_groups",), "site")}
    node = node_at(collector.document, ("node_groups",))
    if isinstance(node, ListNode) and any(isinstance(g, MapNode) and "site" not in g.entries for g in node.items):
        sites.add("site")
    _check_pairs(collector, ("sites", "links"), sorted(sites), "site")


def check_prices(collector: Collector, chips: ChipFinder) -> None:
    """Every price is for a chip that something describes, and all are in one currency."""
    currencies: dict[str, str] = {}
    described = [name for name in chips.used if chips.exists(name)]
    for name in collector.keys(("prices",)):
        if collector.full:
            return
        node = node_at(collector.document, ("prices", name))
        if not chips.exists(name):
            chip = _chip_of_group(collector, name)
            if chip is not None and chips.exists(chip):
                what, advice = f"{name[:60]!r} is a node group, not a chip", f"write its chip, `{chip}`"
                collector.add(("prices", name), what, "prices are per chip", advice, key=True)
            else:
                advice = did_you_mean(name, described, "chips here", unknown_chip_advice(name, profile_names()))
                collector.add(("prices", name), f"unknown chip {name[:60]!r}", "", advice, key=True)
        try:
            currency = parse_price(node.value if isinstance(node, ScalarNode) else None)[1]
        except QuantityError:
            continue
        currencies.setdefault(currency, name)
    if len(currencies) > 1:
        first, other = list(currencies)[:2]
        what = f"is in {other}, the price of {currencies[first]} in {first}"
        collector.add(("prices", currencies[other]), what, "costs are added up", "convert to one currency")


def check_paths(collector: Collector, groups: list[tuple[int, NodeGroup]]) -> None:
    """Something joins the nodes of every group, and every pair of groups."""
    links = {frozenset(link.between): link for _, link in collector.entries(Link, ("links",))}
    sites = collector.valid(Sites, ("sites",)) or Sites()
    site_links = {frozenset(link.between): link for link in sites.links}
    numbers = {frozenset(link.between): number for number, link in collector.entries(Link, ("sites", "links"))}
    unreached: set[int] = {index for index, group in groups if group.nodes > 1}
    for (first, a), (index, b) in combinations(groups, 2):
        stated: list[LinkFigures | None] = [links.get(frozenset((a.name, b.name)))]
        if a.site != b.site:
            stated += [site_links.get(frozenset((a.site, b.site))), sites]
        missing = _missing(stated, "bandwidth" if a.site == b.site else "total")
        if missing and a.site != b.site:
            _refuse_site_gap(collector, index, numbers.get(frozenset((a.site, b.site))), (a, b), missing)
        elif missing:
            unreached |= {first, index}
    for index, group in groups:
        if index in unreached and group.nic is None and not _has(collector, index, "nic"):
            why = f"the profile of {group.chip} does not say, and nodes reach each other through it"
            fix = "add `nic: {bandwidth: ..., latency: ...}` (per chip) to the group or chip"
            collector.add(("node_groups", index, "nic"), "is not known", why, fix)


def used_prices(file: ClusterFile, chips: ChipFinder) -> tuple[dict[str, float], str]:
    """Prices of the chips in the cluster, and their currency."""
    prices = {name: amount for name, (amount, _) in sorted(file.prices.items()) if name in chips.used}
    currency = next((currency for _, currency in file.prices.values()), "") if prices else ""
    return prices, currency


def notices_of(cluster: Cluster, file: ClusterFile) -> list[Notice]:
    """What a reader of a plan for the cluster must know."""
    notices = []
    for name, chip in sorted(cluster.chips.items()):
        if chip.trust in _DOUBTFUL:
            notices.append(Notice("trust", f"{name}: {_DOUBTFUL[chip.trust]} (trust: {chip.trust})"))
    staged = _staged_without_rate(cluster)
    if staged:
        rate = format_rate(DEFAULT_HOST_STAGING_BYTES_PER_S)
        message = f"host staging of {', '.join(staged)} is not known; {rate} is assumed (PCIe 3.0 x16)"
        notices.append(Notice("host-staging", message))
    notices += [*_far_nics(cluster)]
    for section, names in (("chips", file.chips), ("prices", file.prices)):
        notices += [
            Notice("unused", f"{section}.{name} is not used: no node group has this chip")
            for name in sorted(names)
            if name not in cluster.chips
        ]
    if file.sites is not None and len({group.site for group in cluster.node_groups}) == 1:
        notices.append(Notice("unused", "`sites` is not used: all node groups stand at one site"))
    return notices


def _far_nics(cluster: Cluster) -> Iterator[Notice]:
    """Groups whose chips are made to use NICs that are not near them."""
    for group in cluster.node_groups:
        affinity = group.nic_affinity
        if affinity is not None and affinity.far_chips:
            chips = f"{len(affinity.far_chips)} of the {group.chips_per_node} chips of a node use"
            lost = f"{100 * (1 - affinity.share):.0f} % lower"
            priced = f"the group's NIC rate is priced {lost} (a far NIC: {100 * FAR_NIC_LOSS:.0f} %)"
            yield Notice("nic-affinity", f"{group.name}: {chips} a NIC that is not near them; {priced}")


def _check_pairs(collector: Collector, path: tuple[str, ...], known: list[str], noun: str) -> None:
    seen: dict[frozenset[str], int] = {}
    node = node_at(collector.document, path)
    for index, item in enumerate(node.items if isinstance(node, ListNode) else []):
        between = item.entries.get("between") if isinstance(item, MapNode) else None
        if collector.full:
            return
        if not isinstance(between, ListNode) or len(between.items) != 2:
            continue
        here: tuple[str | int, ...] = (*path, index, "between")
        names = [str(end.value) if isinstance(end, ScalarNode) else "" for end in between.items]
        for end, name in enumerate(names):
            if name and name not in known:
                others = [other for other in known if other not in names]
                advice = did_you_mean(name, others, f"{noun}s here", f"{noun}s here: {', '.join(known[:12])}")
                collector.add((*here, end), f"unknown {noun} {name[:60]!r}", "", advice)
        pair = frozenset(names)
        if len(pair) == 1:
            why = f"a link joins two different {noun}s"
            fix = "the profile's or group's `nic` joins the nodes of one group" if noun == "node group" else ""
            collector.add(here, f"joins {names[0][:60]!r} with itself", why, fix or "name two sites")
        elif pair in seen:
            line = collector.document.locate((*path, seen[pair])).line
            what = f"joins {names[0][:60]!r} and {names[1][:60]!r} a second time"
            collector.add(here, what, f"first on line {line}", "remove one of the links")
        seen.setdefault(pair, index)


def _missing(stated: list[LinkFigures | None], rate: str) -> list[str]:
    """The figures that nobody states. rate: `total` between sites; inside one `bandwidth`, or `total` for all pairs."""
    figures = [figure for figure in stated if figure is not None]
    rates = [figure.total_bytes_per_s for figure in figures]
    rates += [figure.bandwidth_bytes_per_s for figure in figures if rate == "bandwidth"]
    missing = [] if any(known is not None for known in rates) else [rate]
    return missing if any(f.latency_s is not None for f in figures) else [*missing, "latency"]


def _refuse_site_gap(
    collector: Collector, index: int, number: int | None, groups: tuple[NodeGroup, NodeGroup], missing: list[str]
) -> None:
    """Stands at the sites' link (`number`) where there is one, else at the second group's site."""
    a, b = groups
    what = f"the {' and '.join(missing)} between sites {a.site!r} and {b.site!r} is not known"
    why = "a local network would be a guess"
    if "total" in missing:
        why += "; `total` is what the line carries in each direction for all pairs of chips together (`bandwidth` is"
        why += " for one pair of chips, and optional)"
    figures = {"total": "total: 10 Gbps", "latency": "latency: 20 ms"}
    if number is not None:
        wanted = ", ".join(figures[name] for name in missing)
        collector.add(("sites", "links", number), what, why, f"add `{wanted}` with your figures to the link")
        return
    link = f"{{between: [{a.site}, {b.site}], {', '.join(figures.values())}}}"
    fix = f"add `sites: {{links: [{link}]}}` with your figures"
    collector.add(("node_groups", index, "site"), what, why, fix)


def _chip_of_group(collector: Collector, name: str) -> str | None:
    """The chip that a node group of that name says it has."""
    named = {group for group, text in collector.texts(("node_groups",), "name") if text == name}
    return next((chip for group, chip in collector.texts(("node_groups",), "chip") if group in named), None)


def _has(collector: Collector, index: int, key: str) -> bool:
    """Whether the group's entry says anything under the key (then its problems stand there)."""
    return node_at(collector.document, ("node_groups", index, key)) is not None


def _staged_without_rate(cluster: Cluster) -> list[str]:
    """Chips whose copies to host memory matter but have no known rate."""
    found: set[str] = set()
    unknown = [i for i in range(len(cluster.node_groups)) if cluster.chip_of(i).host_staging_bytes_per_s is None]
    for a in unknown:
        for b in range(len(cluster.node_groups)):
            if a != b and cluster.uses_default_staging(a, b):
                found.add(cluster.node_groups[a].chip)
    return sorted(found)
