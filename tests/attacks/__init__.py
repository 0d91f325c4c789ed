# SPDX-License-Identifier: Apache-2.0
"""Attacks on the shipped commands, each as whoever makes it would. ``make attacks`` runs them and ends with a count.

To add one:

1. Choose the file of its subject, ``test_<subject>.py``, or begin one and name it in ``docs/explanation``.
2. Mark the module (``pytestmark = pytest.mark.attack``), and let each attack be a test or a parameter of its own, so
   that the count is one of attacks. One that takes more than some seconds has the marker ``full`` besides.
3. Start what is attacked by the fixtures of ``conftest.py``: a node with its plugin as the DaemonSet has it, a
   ``tenant`` in its container, a ``stranger`` with an account on the host and nothing else.
4. Assert what the victim sees, a neighbour that starts or a probe that answers, and that the attack was made: what
   fails by a slip of its own shows nothing.
"""
