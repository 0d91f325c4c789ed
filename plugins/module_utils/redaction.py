# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes secrets out of text that others are shown: logs, annotations, command lines, configuration. Pure.

What looks like a secret, or is called one, goes. What neither looks like one nor is called one cannot be known; values
that were found secret in one place are taken out of all others.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterable, List, Match, Pattern, Sequence, Tuple, Union

REDACTED = "[redacted]"

_NAMES = (
    r"passw(?:or)?d|passphrase|pwd|secret|token|api[-_.]?key|access[-_.]?key|private[-_.]?key|signing[-_.]?key"
    r"|encryption[-_.]?key|license[-_.]?key|client[-_.]?key|key[-_.]?data|authority[-_.]?data|certificate[-_.]?data"
    r"|credential|authorization|cookie|session[-_.]?id|dsn|webhook|connection[-_.]?string"
)
_SECRET_NAME = re.compile(rf"{_NAMES}|(?:^|[_.-])(?:auth|pat)$|[_-]key$", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
_PEM_LINE = re.compile(r"\s*[A-Za-z0-9+/=]{1,80}\s*\Z")
_SHORTEST = 6
"""Characters of a value that is taken out wherever it stands: a shorter one may be any word."""
_LONGEST_KEY = 64

_VALUE = r"""\\?"(?:[^"\\]|\\[^"])*\\?"|'[^']*'|[^\s,;&"'}\]]+"""

_Replacement = Union[str, Callable[[Match[str]], str]]


def _named(match: Match[str]) -> str:
    """A count of tokens, as models' servers log it, is no secret."""
    plural = match["name"].lower() == "token" and match["rest"].lower().startswith("s")
    return match[0] if plural and _NUMBER.match(match["value"]) else f"{match['head']}{REDACTED}"


_RULES: Sequence[Tuple[Pattern[str], _Replacement]] = (
    # PEM, also one whose end was cut off.
    (
        re.compile(
            r"-----BEGIN [^-\n]{1,60}-----(?:(?!-----BEGIN)[\s\S])*?(?:-----END [^-\n]{1,60}-----|(?=-----BEGIN)|\Z)"
        ),
        REDACTED,
    ),
    (re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]{1,20}://)[^/\s\"'<>]{1,512}@"), rf"\g<scheme>{REDACTED}@"),
    (
        re.compile(r"(?P<head>\bauthorization\b\\?[\"']?\s{0,3}[:=]\s{0,3})[^\n]{1,4096}", re.IGNORECASE),
        rf"\g<head>{REDACTED}",
    ),
    (re.compile(r"(?P<head>\b(?:bearer|basic)\s{1,3})[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\g<head>{REDACTED}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{6,2048}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*)?"), REDACTED),
    (
        re.compile(
            r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
            r"|glpat-[A-Za-z0-9_-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|hf_[A-Za-z0-9]{20,}|nvapi-[A-Za-z0-9_-]{16,}"
            r"|sk-[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{16,})"
        ),
        REDACTED,
    ),
    (
        re.compile(
            rf"(?P<head>(?P<name>{_NAMES})(?P<rest>[\w.-]{{0,32}})\\?[\"']?\s{{0,3}}(?:=>|[:=])\s{{0,3}})(?P<value>{_VALUE})",
            re.IGNORECASE,
        ),
        _named,
    ),
    (re.compile(r"(?P<head>\\?\"auth\\?\"\s{0,3}:\s{0,3})(?:\\?\"[^\"\\]*\\?\")"), rf"\g<head>{REDACTED}"),
    # --password secret, --api-key secret
    (
        re.compile(
            rf"(?P<head>--?[\w-]{{0,32}}(?:{_NAMES})[\w-]{{0,32}}[\"']?,?\s{{1,3}})(?P<value>{_VALUE})", re.IGNORECASE
        ),
        rf"\g<head>{REDACTED}",
    ),
)


def secret_name(name: str) -> bool:
    """Whether what is called so is a secret."""
    return _SECRET_NAME.search(name[:_LONGEST_KEY]) is not None


class Redaction:
    """Takes out what looks or is called secret, and these ``known`` values wherever they stand."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        values = {value.strip() for value in known}
        longest_first = sorted((value for value in values if len(value) >= _SHORTEST), key=lambda v: (-len(v), v))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        return _without_ends(text) if "-----END" in text else text

    def mapping(self, values: Dict[str, Any]) -> Dict[str, Any]:
        """Names and values, as of labels, annotations or a ConfigMap's data."""
        return {
            self.text(str(name)): REDACTED
            if isinstance(value, str) and value and secret_name(str(name))
            else self.document(value)
            for name, value in values.items()
        }

    def document(self, value: Any) -> Any:  # noqa: ANN401 - as JSON is
        """JSON without secrets: names as well as values are looked at."""
        if isinstance(value, dict):
            return self.mapping(value)
        if isinstance(value, list):
            return [self.document(item) for item in value]
        return self.text(value) if isinstance(value, str) else value


def _without_ends(text: str) -> str:
    """Without the rest of a PEM block whose beginning was cut off, as the first lines of a log's end may be."""
    lines: List[str] = []
    for line in text.splitlines(keepends=True):
        if "-----END" in line:
            while lines and _PEM_LINE.match(lines[-1]):
                lines.pop()
            line = f"{REDACTED}\n"
        lines.append(line)
    return "".join(lines)
