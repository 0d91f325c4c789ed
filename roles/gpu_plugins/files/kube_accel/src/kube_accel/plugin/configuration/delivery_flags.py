# SPDX-License-Identifier: Apache-2.0
"""How containers get to know their GPUs: flags first, then the configuration, then what suits most nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kube_accel.sharing.delivery import Delivery, Strategy

if TYPE_CHECKING:
    from kube_accel.plugin.configuration.file import Configuration

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class DeliveryFlags:
    """Flags of the command, which a configuration file may give too. None: not given."""

    device_list_strategy: tuple[Strategy, ...] | None = None
    device_id_strategy: str | None = None
    pass_device_specs: bool | None = None
    cdi_annotation_prefix: str | None = None
    driver_root: str | None = None
    container_driver_root: str | None = None
    gdrcopy: bool | None = None
    gds: bool | None = None
    mofed: bool | None = None
    hooks_by_cdi: bool = False


def settle(flags: DeliveryFlags, configuration: Configuration) -> Delivery:
    """Return what holds when both may say something.

    Device nodes are kubelet's to give too unless CDI brings them: a container whose device cgroup kubelet does not know
    of loses its GPUs when systemd is reloaded.
    """
    default = Delivery()
    strategies = _first(flags.device_list_strategy, configuration.device_list_strategy, default.strategies)
    by_cdi = any(strategy.by_cdi for strategy in strategies)
    root = _first(flags.driver_root, configuration.driver_root, default.driver_root)
    return Delivery(
        strategies=strategies,
        by_index=_first(flags.device_id_strategy, configuration.device_id_strategy, "uuid") == "index",
        device_nodes=_first(flags.pass_device_specs, configuration.pass_device_specs, not by_cdi),
        annotation_prefix=_first(
            flags.cdi_annotation_prefix, configuration.cdi_annotation_prefix, default.annotation_prefix
        ),
        gdrcopy=_first(flags.gdrcopy, configuration.gdrcopy, False),
        gds=_first(flags.gds, configuration.gds, False),
        mofed=_first(flags.mofed, configuration.mofed, False),
        imex_channels=configuration.imex_channels,
        hooks_by_cdi=flags.hooks_by_cdi and not by_cdi,
        driver_root=root,
        driver_root_here=_first(flags.container_driver_root, configuration.container_driver_root, root),
    )


def _first(flag: _Value | None, configured: _Value | None, default: _Value) -> _Value:
    return next((value for value in (flag, configured) if value is not None), default)
