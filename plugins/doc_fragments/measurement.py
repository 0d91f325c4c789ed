# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options and attributes of the modules that measure in pods."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment ``accel.kubernetes.measurement``."""

    DOCUMENTATION = r"""
options:
  runtime_class:
    description: RuntimeClass of the pods. Empty for none.
    type: str
    default: nvidia
  plugins_namespace:
    description: Namespace of the device plugins, where the pods run by default.
    type: str
    default: kube-system
  start_timeout:
    description: Seconds to wait until all pods run, with their images pulled.
    type: int
    default: 300
  json_file:
    description: Path of the JSON file to write RV(report) to. The directory must exist.
    type: path
requirements:
  - kubernetes
attributes:
  check_mode:
    support: full
    details: Returns what would run. Runs nothing, and writes no file.
  diff_mode:
    support: full
  idempotent:
    support: none
    details: No two measurements are alike.
  platform:
    support: full
    platforms: posix
"""
