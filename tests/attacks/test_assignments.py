# SPDX-License-Identifier: Apache-2.0
"""A pod whose annotations say that it has more than it asked for, or are what nobody of ours would write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count

import pytest

from attacks.conftest import POLICY, Attacked, Tenant, needs_root
from bench.node import NAME
from kube_accel.enforce.policy import Limit, read_policy
from kube_accel.sharing.assignment import ANNOTATION

pytestmark = [pytest.mark.attack, needs_root]

VICTIM = 1
"""The GPU that a neighbor has most of."""
CORES, GIB = 5, 2
"""What the pods ask for."""
_names = count()


def _share(uuid: str, cores: int = CORES, size: int = GIB << 30) -> dict[str, object]:
    return {"uuid": uuid, "cores": cores, "memoryBytes": size}


def _assigned(*shares: dict[str, object], **changes: object) -> dict[str, str]:
    return {
        ANNOTATION: json.dumps({"version": 1, "node": NAME, "containers": {"main": list(shares)}} | changes),
    }


FORGED: dict[str, Callable[[Sequence[str], str], dict[str, str]]] = {
    "more than it asks for": lambda gpus, _: _assigned(_share(gpus[2], 100, 80 << 30)),
    "a neighbor's GPU": lambda gpus, _: _assigned(_share(gpus[VICTIM])),
    "every GPU": lambda gpus, _: _assigned(*(_share(gpu, 100, 80 << 30) for gpu in gpus)),
    "another node": lambda gpus, _: _assigned(_share(gpus[2]), node="another"),
    "a GPU that is none": lambda gpus, _: _assigned(_share("../../etc")),
    "a GPU of elsewhere": lambda gpus, _: _assigned(_share("GPU-00000000-0000-0000-0000-000000000000")),
    "containers that it lacks": lambda gpus, _: _assigned(containers={f"c{n}": [_share(gpus[2])] for n in range(64)}),
    "nothing but depth": lambda gpus, _: {ANNOTATION: "{" * 60_000},
    "an endless number": lambda gpus, _: {
        ANNOTATION: _assigned(_share(gpus[2]))[ANNOTATION].replace("5", "9" * 60_000)
    },
    "what other schedulers write": lambda gpus, _: {
        "tencent.com/gpu-assigned": "true",
        "tencent.com/predicate-gpu-idx-0": str(VICTIM),
        "tencent.com/predicate-node": NAME,
        "tencent.com/predicate-time": "-1",
    },
    "the identity of a neighbor": lambda gpus, uid: (
        _assigned(_share(gpus[2]))
        | {
            "kubernetes.io/config.source": "file",
            "kubernetes.io/config.mirror": uid,
            "kubernetes.io/config.hash": uid,
        }
    ),
}


def _limits(tenant: Tenant) -> tuple[Limit, ...]:
    return read_policy(tenant.path(POLICY).read_bytes())[0].limits


@pytest.fixture(scope="module")
def victim(node: Attacked) -> Tenant:
    """A neighbor that leaves less of its GPU than the pods ask for."""
    return node.start("victim", gpu=VICTIM, cores=98, gib=70)


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_assignment_gives_what_the_devices_are(
    node: Attacked, victim: Tenant, forged: Callable[[Sequence[str], str], dict[str, str]]
) -> None:
    uuids, before = node.node.uuids, _limits(victim)
    annotations = forged(uuids, victim.pod.uid)
    pod = node.pod(f"forged-{next(_names)}", node.limits(CORES, GIB), annotations)
    tenant = Tenant(node, pod, node.node.kubelet.admit(pod)["main"])
    (limit,) = _limits(tenant)
    assert (limit.cores, limit.memory_bytes) == (CORES, GIB << 30)
    assert limit.uuid in set(uuids) - {uuids[VICTIM]}
    given = {device.split("::")[0] for ids in tenant.got.device_ids.values() for device in ids}
    assert given == {limit.uuid}
    nodes = {spec.container_path for spec in tenant.got.devices} & {f"/dev/nvidia{at}" for at in range(len(uuids))}
    assert nodes == {f"/dev/nvidia{uuids.index(limit.uuid)}"}
    assert _limits(victim) == before
    neighbor = node.start(f"neighbor-{next(_names)}", gpu=3)
    assert [limit.uuid for limit in _limits(neighbor)] == [uuids[3]]
    node.end(neighbor)
    node.end(tenant)
    node.unharmed()
