# SPDX-License-Identifier: Apache-2.0
"""Gives an environment of ansible-test a pip that hands the work to uv, which takes a fifth of pip's time.

ansible-test runs it in each new environment, in place of the script that it would download (tests/tools/sanity.sh).
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

_PIP = """
import subprocess
import sys

asked = [word for word in sys.argv[1:] if word != "--disable-pip-version-check"]
command = ["--version"] if "-V" in asked else ["pip", *asked, "--quiet", "--python", sys.executable]
sys.exit(subprocess.call([{uv!r}, *command]))
"""

if __name__ == "__main__":
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv is not on PATH, so ansible-test cannot install what its tests need. Run: make setup")
    pip = Path(sysconfig.get_path("purelib"), "pip")
    pip.mkdir()
    (pip / "__init__.py").touch()
    (pip / "__main__.py").write_text(_PIP.format(uv=uv))
