# SPDX-License-Identifier: Apache-2.0
"""What is told to Prometheus: collected in the background, attributed to containers, rendered ahead of any scrape."""
