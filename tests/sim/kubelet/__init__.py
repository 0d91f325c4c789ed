# SPDX-License-Identifier: Apache-2.0
"""A kubelet as device plugins and PodResources clients see it."""

from sim.kubelet.kubelet import AdmissionError, ContainerStartError, FakeKubelet
from sim.kubelet.model import Container, ContainerAllocation, Device, DeviceSpec, Mount, PodSpec

__all__ = [
    "AdmissionError",
    "Container",
    "ContainerAllocation",
    "ContainerStartError",
    "Device",
    "DeviceSpec",
    "FakeKubelet",
    "Mount",
    "PodSpec",
]
