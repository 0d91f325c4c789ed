# SPDX-License-Identifier: Apache-2.0
"""Makes the README's pictures anew: the one of who has what, and of a report's page, where there is a Chromium."""

from __future__ import annotations

import sys

from pictures import IMAGES, allocation, browser, photograph, report


def main() -> int:
    """Makes them; 1 where there is no Chromium for the second."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "allocation.svg").write_text(allocation())
    if browser() is None:
        print("no Chromium on PATH: docs/images/report.png is as it was", file=sys.stderr)
        return 1
    photograph(report(), IMAGES / "report.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
