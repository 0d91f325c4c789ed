# SPDX-License-Identifier: Apache-2.0
"""What Prometheus scrapes: collected in the background, attributed to containers, rendered ahead of any scrape."""
