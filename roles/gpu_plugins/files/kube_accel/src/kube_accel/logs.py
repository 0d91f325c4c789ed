# SPDX-License-Identifier: Apache-2.0
"""Logs for machines: one JSON object a line on stderr."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType

from kube_accel.shared.printable import block, document, line

_log = logging.getLogger(__name__)

_LONGEST = 4096
"""Characters of one text; a container runtime divides lines of 16 KiB."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Renders a record as ``{"time", "level", "logger", "message", ...extra}``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON; ``extra=`` fields become members of the object.

        Texts are harmless and bounded, also for who reads them out of the JSON: others wrote some of them.
        """
        shown: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        shown.update({name: value for name, value in vars(record).items() if name not in _STANDARD})
        if not record.exc_info:
            text = json.dumps(shown, default=str)
            # Whatever ``document`` would change is escaped here, or too long.
            if len(text) <= _LONGEST and "\\" not in text and text.isprintable():
                return text
        shown = document(shown, _LONGEST)
        if record.exc_info:
            shown["exception"] = block(self.formatException(record.exc_info), _LONGEST)
        return json.dumps(shown, default=lambda value: line(value, _LONGEST))


def configure(level: str) -> None:
    """Send every logger's records of ``level`` (debug, info, warning, error) and above to stderr as JSON.

    An exception that is not caught is one of them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda end: _uncaught(end.exc_type, end.exc_value, end.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if not issubclass(kind, SystemExit):
        _log.critical("unexpected error", exc_info=(kind, error or kind(), trace))
