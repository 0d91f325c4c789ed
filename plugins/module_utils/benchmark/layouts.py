# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which layouts a node is to have in turn while it is measured, where the playbook may switch it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ..shared.inventory import GPU_NODES
from ..shared.modes import MODES, WHOLE_MODE
from ..shared.registers import mapping

MOST = 64
"""The most layouts of a run."""
_KEYS = ("mode", "config", "mig_config")


@dataclass(frozen=True)
class Layout:
    """What a node is to be."""

    mode: str
    config: str = ""
    """A configuration of ``gpu_plugins_configs``; empty for the one that it has."""
    mig_config: str = ""
    """A configuration of ``gpu_plugins_mig_configs``; empty where its GPUs stay as they are cut."""

    @property
    def name(self) -> str:
        """Return it as people write it."""
        return "/".join(part for part in (self.mode, self.config, self.mig_config) if part)


@dataclass(frozen=True)
class Turns:
    """The layouts, and the host that has them."""

    layouts: Tuple[Layout, ...] = ()
    host: str = ""
    """Its name in the inventory."""
    refusals: Tuple[str, ...] = ()

    def document(self) -> Dict[str, Any]:
        """Return it as a playbook reads it."""
        return {
            "layouts": [{**vars(layout), "name": layout.name} for layout in self.layouts],
            "host": self.host,
            "refusals": list(self.refusals),
        }


def turns(
    wanted: object, node: str, hostvars: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> Turns:
    """Return the layouts of a node in turn: a list, or a text with commas, of ``mode`` or ``mode/config``."""
    given = [part.strip() for part in wanted.split(",") if part.strip()] if isinstance(wanted, str) else wanted
    if not given:
        return Turns()
    if not isinstance(given, (list, tuple)):
        return Turns(refusals=(f"benchmark_layouts is {wanted!r}; write a list such as [pgpu, pgpu/shared, vgpu]",))
    if len(given) > MOST:
        return Turns(refusals=(f"benchmark_layouts has {len(given)} layouts; name at most {MOST} in one run",))
    refused: List[str] = []
    layouts = [layout for layout in (_layout(each, refused) for each in given) if layout is not None]
    hosts = [
        host for host in groups.get(GPU_NODES) or () if str(hostvars[host].get("gpu_plugins_node_name") or host) == node
    ]
    if not hosts:
        refused.append(
            f"benchmark_layouts switches node '{node}', but no host of the group {GPU_NODES} is that node; add it to"
            " the inventory, or leave benchmark_layouts out"
        )
        return Turns(refusals=tuple(refused))
    known = hostvars[hosts[0]]
    refused += [problem for layout in layouts for problem in _unknown(layout, known)]
    cut = any(layout.mig_config for layout in layouts)
    if cut and not known.get("gpu_plugins_mig_config"):
        refused.append(
            f"benchmark_layouts splits GPUs of '{node}' by MIG, but the inventory does not say how to leave them;"
            " set gpu_plugins_mig_config of the host, to all-disabled for whole GPUs"
        )
    return Turns(tuple(layouts), hosts[0], tuple(dict.fromkeys(refused)))


def _layout(given: object, refused: List[str]) -> "Layout | None":
    if isinstance(given, str):
        mode, _slash, config = given.partition("/")
        found: Mapping[str, Any] = {"mode": mode, "config": config}
    else:
        found = mapping(given)
    unknown = [str(key) for key in found if key not in _KEYS]
    values = {key: str(found.get(key) or "") for key in _KEYS}
    if unknown or values["mode"] not in MODES:
        what = f"key {unknown[0]}" if unknown else f"mode '{values['mode']}'"
        refused.append(
            f"benchmark_layouts has {given!r} with {what}; a layout is one of {', '.join(MODES)}, as pgpu/NAME with a "
            f"configuration of gpu_plugins_configs, or has the keys {', '.join(_KEYS)}"
        )
        return None
    layout = Layout(**values)
    if layout.mode != WHOLE_MODE and (layout.config or layout.mig_config):
        refused.append(f"benchmark_layouts has {layout.name}; mode {layout.mode} has no configurations, only pgpu has")
        return None
    return layout


def _unknown(layout: Layout, known: Mapping[str, Any]) -> List[str]:
    configs = mapping(known.get("gpu_plugins_configs"))
    cuts = mapping(mapping(known.get("gpu_plugins_mig_configs")).get("mig-configs"))
    found = []
    if layout.config and layout.config not in configs:
        names = ", ".join(map(str, configs)) or "none"
        found.append(f"benchmark_layouts has {layout.name}, and gpu_plugins_configs has {names}; name one of them")
    if layout.mig_config and cuts and layout.mig_config not in cuts:
        names = ", ".join(map(str, cuts))
        found.append(f"benchmark_layouts has {layout.name}, and gpu_plugins_mig_configs has {names}; name one of them")
    return found
