# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether NVIDIA's container toolkit lets the plugin of a node cut GPUs by MIG. Pure."""

from __future__ import annotations

from typing import Any, List, Mapping

from ..shared.finding import Finding
from ..shared.minimums import cannot_cut
from ..shared.modes import DRA_MODE, WHOLE_MODE
from ..shared.options import OptionReader


def mig_toolkit(values: Mapping[str, Any], node: Mapping[str, Any], toolkit: Mapping[str, Any]) -> List[Finding]:
    """Return a finding where it does not, and is to. ``toolkit`` is the result of ``nvidia_runtime``."""
    options = OptionReader(values)
    seen = options.text("gpu_plugins_mig_strategy") != "none" or options.boolean("gpu_plugins_mig_label")
    made = bool(options.mappings("gpu_plugins_dra_mig_offers"))
    options.require_values()
    if not (seen and node["target"] == WHOLE_MODE) and not (made and node["target"] == DRA_MODE):
        return []
    version, mode = (str(toolkit.get(key) or "") for key in ("toolkit_version", "toolkit_mode"))
    return cannot_cut(version, mode)
