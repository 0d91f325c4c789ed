# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs anew: of a cluster, and of a report in both themes, where there is a Chromium."""

from __future__ import annotations

import sys

from pictures import IMAGES, REPORTS, allocation, browser, photograph, report


def main() -> int:
    """Makes them; 1 where there is no Chromium for the report's."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "allocation.svg").write_text(allocation())
    if browser() is None:
        print("no Chromium on PATH: docs/images/report*.png are as they were", file=sys.stderr)
        return 1
    for name, dark in REPORTS.items():
        photograph(report(), IMAGES / name, dark=dark)
    return 0


if __name__ == "__main__":
    sys.exit(main())
