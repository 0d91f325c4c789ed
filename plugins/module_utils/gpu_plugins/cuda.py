# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which CUDA programs do not run as they are on a node. Pure."""

from __future__ import annotations

from typing import List, Mapping

from ..shared.finding import Finding
from ..shared.registers import mapping, results


def cuda_findings(answers: Mapping[str, object], node: str) -> List[Finding]:
    """Return a finding for each program that is not ``ok`` on the node, by the results of ``cuda_compat``."""
    return [
        Finding(
            str(answer["verdict"]),
            "cuda",
            f"Program {mapping(answer.get('item')).get('name')} is {answer['verdict']} on {node} "
            f"({answer.get('rule')}): {answer.get('reason')}.",
            str(answer.get("remedy", "")),
        )
        for answer in results(answers)
        if answer.get("verdict", "ok") != "ok"
    ]
