# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the modules that ask NVML."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment ``accel.kubernetes.nvml``."""

    DOCUMENTATION = r"""
options:
  library:
    description: Name or path of the library.
    type: str
    default: libnvidia-ml.so.1
  driver_root:
    description:
      - Directory of the driver's files, such as V(/run/nvidia/driver) of the GPU operator's driver container.
      - The module looks for an O(library) without a directory there. If it does not exist there, or with V(/), the
        linker finds it.
    type: path
    default: /
"""
