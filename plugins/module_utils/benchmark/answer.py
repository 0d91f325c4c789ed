# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module returns of its pods: files with the report, and the report, also where something stopped them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

from ..host.replaced_file import written
from ..shared import printable


def answer(
    module: AnsibleK8SModule, told: Mapping[str, Any], texts: Mapping[str, str], stopped: str, done: str, **more: object
) -> None:
    """Write the texts of the files that options name, and end the module with the report ``told``.

    ``stopped`` says what ended the pods, and is empty where they came to their end. ``done`` says what was done until
    then. A report without rows is not written once something was stopped. Ends by SystemExit.
    """
    diffs: List[Dict[str, Any]] = []
    for option, text in texts.items():
        if module.params[option] and (told["rows"] or not stopped):
            try:
                diffs += written(module.params[option], text, module.check_mode)
            except OSError as error:
                stopped = stopped or f"{option}: {module.params[option]}: {error}"
    shown = {"report": printable.document(told), **more}
    if stopped:
        module.fail_json(msg=f"{printable.line(stopped)}. What was {done} until then is in the report", **shown)
    module.exit_json(changed=bool(diffs), diff=diffs, complete=not told["problems"], **shown)
