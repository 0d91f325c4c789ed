# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes is the machine's doing, and machines are shared.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")
