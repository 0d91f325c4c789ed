# SPDX-License-Identifier: Apache-2.0
"""A configuration as NVIDIA's device plugin has it (api/config/v1 of its source): what that takes is taken. Pure.

What it takes and ignores, and what nothing here needs, is noted. A file with a mistake is refused as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from kube_accel.plugin.configuration.delivery_flags import DeliveryFlags
from kube_accel.shared import goyaml
from kube_accel.shared.offers import Replication
from kube_accel.shared.sharing_config import Reader, mig_strategy, sharing
from kube_accel.sharing.delivery import Strategy

_UNUSED_FLAGS = (
    "failOnInitError",
    "restartOnDeviceUnhealthy",
    "mpsRoot",
    "nvidiaDevRoot",
    "useNodeFeatureAPI",
    "deviceDiscoveryStrategy",
)
_UNUSED_PLUGIN_FLAGS = ("nvidiaCTKPath", "nvidiaCDIHookPath", "cdiFeatureFlags", "cdiDisableHooks")
_GFD_FLAGS = ("oneshot", "noTimestamp", "sleepInterval", "outputFile", "machineTypeFile")


class ConfigError(ValueError):
    """The text is no configuration; the message names every key that is wrong, and why."""


@dataclass(frozen=True, slots=True)
class Configuration(DeliveryFlags):
    """What a file says, also of what is a flag of the command. None: nothing, so that a flag or a default decides."""

    mig_strategy: str | None = None
    pack_shared: bool = False
    """Replicas of one GPU are handed out one after the other; otherwise those of the least used."""
    imex_channels: tuple[int, ...] = ()
    replications: tuple[Replication, ...] = ()
    one_replica_each: bool = False
    """A container gets one replica at most."""
    notes: tuple[str, ...] = ()
    """What of it has no effect, for a person."""


def parse(text: str) -> Configuration:
    """Return what the file says. Raises ConfigError."""
    try:
        document = goyaml.load(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    reader = Reader()
    found = _configuration(reader, document)
    if reader.problems:
        raise ConfigError("; ".join(reader.problems))
    return found


def _configuration(reader: Reader, document: object) -> Configuration:
    top = reader.section(document, "", ("version", "flags", "resources", "sharing", "imex"))
    if top.get("version") not in (None, "", "v1"):
        reader.problem("version", f"is {top['version']!r}; it must be v1")
    flags = reader.section(
        top.get("flags"),
        "flags",
        ("migStrategy", "nvidiaDriverRoot", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "plugin", "gfd"),
        _UNUSED_FLAGS,
    )
    plugin = reader.section(
        flags.get("plugin"),
        "flags.plugin",
        (
            "passDeviceSpecs",
            "deviceListStrategy",
            "deviceIDStrategy",
            "cdiAnnotationPrefix",
            "containerDriverRoot",
            "sharedDevicesAllocationPolicy",
        ),
        _UNUSED_PLUGIN_FLAGS,
    )
    reader.section(flags.get("gfd"), "flags.gfd", (), _GFD_FLAGS)
    reader.section(top.get("resources"), "resources", (), ("gpus", "mig", "migs"))
    imex = reader.section(top.get("imex"), "imex", ("channelIDs", "required"))
    if reader.switch(imex, "imex", "required"):
        reader.notes.append("imex.required has no effect here: a channel that does not exist is left out")
    replications, one_each = sharing(reader, top.get("sharing"))
    policy = reader.choice(plugin, "flags.plugin", "sharedDevicesAllocationPolicy", ("distributed", "packed"))
    return Configuration(
        mig_strategy=mig_strategy(reader, flags, replications),
        device_list_strategy=_strategies(reader, plugin.get("deviceListStrategy")),
        device_id_strategy=reader.choice(plugin, "flags.plugin", "deviceIDStrategy", ("uuid", "index")),
        pass_device_specs=reader.switch(plugin, "flags.plugin", "passDeviceSpecs"),
        cdi_annotation_prefix=reader.text(plugin, "flags.plugin", "cdiAnnotationPrefix"),
        driver_root=reader.text(flags, "flags", "nvidiaDriverRoot"),
        container_driver_root=reader.text(plugin, "flags.plugin", "containerDriverRoot"),
        gdrcopy=reader.switch(flags, "flags", "gdrcopyEnabled"),
        gds=reader.switch(flags, "flags", "gdsEnabled"),
        mofed=reader.switch(flags, "flags", "mofedEnabled"),
        pack_shared=policy == "packed",
        imex_channels=_channels(reader, imex.get("channelIDs")),
        replications=replications,
        one_replica_each=one_each,
        notes=tuple(reader.notes),
    )


def _strategies(reader: Reader, value: object) -> tuple[Strategy, ...] | None:
    if value is None:
        return None
    names = value if isinstance(value, list) else [name.strip() for name in str(value).split(",")]
    try:
        return tuple(dict.fromkeys(map(Strategy, names))) or None
    except (TypeError, ValueError):
        known = ", ".join(Strategy)
        reader.problem("flags.plugin.deviceListStrategy", f"is {value!r}; it must be one or several of {known}")
        return None


def _channels(reader: Reader, value: object) -> tuple[int, ...]:
    if value is None or value == []:
        return ()
    if value == [0]:
        return (0,)
    reader.problem("imex.channelIDs", f"is {value!r}; it must be [] or [0]")
    return ()
