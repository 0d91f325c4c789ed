# SPDX-License-Identifier: Apache-2.0
from kube_accel.plugin.configuration.delivery_flags import DeliveryFlags, settle
from kube_accel.plugin.configuration.file import Configuration
from kube_accel.sharing.delivery import Delivery, Strategy

CDI = (Strategy.CDI_CRI,)


def test_without_a_word_it_is_mounts_variable_and_device_nodes() -> None:
    assert settle(DeliveryFlags(), Configuration()) == Delivery()


def test_flags_come_before_the_configuration() -> None:
    configuration = Configuration(device_list_strategy=CDI, device_id_strategy="index", gds=True, driver_root="/there")
    found = settle(DeliveryFlags(device_list_strategy=(Strategy.ENVVAR,), gds=False), configuration)
    assert found.strategies == (Strategy.ENVVAR,)
    assert (found.by_index, found.gds, found.driver_root, found.driver_root_here) == (True, False, "/there", "/there")


def test_cdi_brings_the_device_nodes_unless_kubelet_is_to() -> None:
    assert not settle(DeliveryFlags(device_list_strategy=CDI), Configuration()).device_nodes
    assert settle(DeliveryFlags(device_list_strategy=CDI), Configuration(pass_device_specs=True)).device_nodes
    assert not settle(DeliveryFlags(pass_device_specs=False), Configuration()).device_nodes
