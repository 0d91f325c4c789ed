# SPDX-License-Identifier: Apache-2.0
"""Scheduler side: the extender that kube-scheduler asks which nodes have room, which are best, and to bind."""
