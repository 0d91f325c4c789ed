# SPDX-License-Identifier: Apache-2.0
"""Compiles each template of the roles once: Ansible does so each time that it evaluates one."""

from __future__ import annotations

from types import CodeType
from typing import Any

from ansible._internal._templating._jinja_bits import AnsibleEnvironment, _TemplateCompileContext


def keep_compiled() -> None:
    """Have Ansible's environments of this process share what they compile.

    The source, the settings of the lexer, and whether backslashes are escaped decide about the code.
    """
    compile_anew = AnsibleEnvironment.compile
    kept: dict[tuple[Any, ...], CodeType] = {}

    def compiled(self: AnsibleEnvironment, source: Any, *settings: Any, **named: Any) -> Any:
        if not isinstance(source, str) or settings or named:
            return compile_anew(self, source, *settings, **named)
        context = _TemplateCompileContext.current(optional=True)
        key = (str(source), type(self), self.lexer, context and context.escape_backslashes)
        if key not in kept:
            kept[key] = compile_anew(self, source)
        return kept[key]

    AnsibleEnvironment.compile = compiled  # type: ignore[method-assign]
