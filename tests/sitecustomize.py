# SPDX-License-Identifier: Apache-2.0
"""Every Python with ``tests`` on its path imports this. In it a module that Ansible sends asks for a fork to run in.

``sim.forks`` says why, and for whom.
"""

import os
import sys

# Ansible pipes modules to a Python without arguments.
if "ACCEL_FORKS" in os.environ and len(getattr(sys, "orig_argv", ("", ""))) == 1:
    from sim.forks import be_forked

    be_forked(os.environ["ACCEL_FORKS"])
