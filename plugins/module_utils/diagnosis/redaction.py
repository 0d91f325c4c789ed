# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes secrets out of text that others are shown: logs, annotations, command lines, configuration. Pure.

What looks like a secret, or is called one, goes. What neither looks like one nor is called one cannot be known; values
that were found secret in one place are taken out of all others.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Callable, Dict, Iterable, List, Match, Pattern, Sequence, Tuple, Union

REDACTED = "[redacted]"

_Rule = Tuple[Pattern[str], Union[str, Callable[[Match[str]], str]]]

_NAMES = (
    r"secret[-_. ]key|passw(?:or)?d|passphrase|passcode|passwort|kennwort|contrase[nñ]a|senha|mot de passe|пароль|密码"
    r"|pwd|secret|token(?!iz)|(?:api|access|private|signing|encryption|license|client|hmac|account|storage|certificate|master"
    r"|subscription|auth)[-_. ]?key"
    r"|(?:user|db|ssh|root|admin|become|ftp|smtp|ldap|redis|mysql)[-_.]?pass(?![a-z])|(?<![a-z])(?:jwt|otp|creds|pw)(?![a-z])"
    r"|key[-_. ]?data|authority[-_. ]?data|certificate[-_. ]?data|access[-_. ]?signature|credential|authorization"
    r"|cookie|sess(?:ion)?[-_. ]?id|dsn|webhook[-_. ]?ur[il]|connection[-_. ]?string"
)
_SECRET_NAME = re.compile(rf"{_NAMES}|webhook|(?:^|[_.-])(?:auth|pat|pass)$|[_-]key$", re.IGNORECASE)
_OF_SECRETS = re.compile(
    r"[_.-]?(?:names?|namespace|refs?|keyref|files?|paths?|dir|directory|ttl|expir\w*|types?|class|length|limit|count|policy"
    r"|provider|issuer|mode|kubeconfig|stdin|rotation|seconds|url|uri)(?:[_.-]|\Z)|.*k8s\.io",
    re.IGNORECASE,
)
"""What follows the name of a secret where only something about it is said: where it lies, what it is called."""
_COUNT = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?[kKMG]?\Z")
_NOTHING = re.compile(
    r"(?:true|false|null|none|nil|yes|no|on|off|~|<nil>|<none>|undefined|unset|\[|\{|\[redacted\]?)\Z", re.IGNORECASE
)
"""Values that are none."""
_SAID = re.compile(
    r"(?:a|absent|accepted|already|also|an|and|any|are|as|at|authentication|be|been|being|by|changed|correct|created"
    r"|denied|different|disabled|empty|enabled|expected|expired|for|found|from|given|has|have|ignored|in|incorrect|into"
    r"|invalid|it|its|left|likely|longer|malformed|missing|mounted|must|needed|never|none|not|now|null|of|ok|on|only"
    r"|optional|or|present|provided|read|refused|rejected|required|revoked|rotated|same|set|shorter|shown|stored|supplied"
    r"|that|the|their|there|this|to|too|undefined|unknown|unset|used|valid|verified|was|will|with|without|wrong|written"
    r"|your)[.:!?)]{0,3}\Z",
    re.IGNORECASE,
)
"""Words that follow the name of a secret in a sentence, and are none."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]{8,}={0,2}\Z")
_PEM_LINE = re.compile(r"\s*[A-Za-z0-9+/=]{1,80}\s*\Z")
_SHORTEST = 6
"""Characters of a value that is taken out wherever it stands: a shorter one may be any word."""
_LONGEST_KEY = 64
_BETWEEN = "\x1f"

_WORD = r"""[^\s,;&"'}\]]"""
# Quoted, quoted and cut off, one that is wrapped, or a word.
_VALUE = (
    r"""(?<!\\)"(?:[^"\\\n]|\\[^\n]){0,4096}"|\\?"(?:[^"\\]|\\[^"]){0,4096}\\?"|'[^'\n]{0,4096}'|\\?["'][^\n]{1,4096}"""
    rf"""|{_WORD}{{40,}}(?:\r?\n[ \t]{{0,40}}[A-Za-z0-9+/=_-]{{4,128}}(?=\r?\n|\Z))*|{_WORD}+"""
)
# To the value: a line may be wrapped there by a shell, YAML or a mail.
_GAP = r"(?:[ \t]{0,3}[|>][+-]?[1-9]?[ \t]{0,3}\r?\n[ \t]{0,40}|[ \t]{0,40}(?:\\?\r?\n[ \t]{0,40})?)"
_SEPARATOR = rf"\\?[\"'`]?\s{{0,3}}(?:=>|:=|->|={{1,3}}|[:：]){_GAP}\$?"
_SLASH = r"(?:\\?/|%2F)"
_WEB = rf"https?(?::|%3A){_SLASH}{_SLASH}"
# A word that is more than one, as words of a sentence are not.
_MIXED = r"(?=[^\s,;\"'<>()0-9]{0,64}[0-9])(?=[0-9]{0,64}[^\s,;\"'<>()0-9])[^\s,;\"'<>()]{5,256}"
_LISTED = r"(?:\\?[\"']?,\s{0,40}\\?[\"']?|\r?\n[ \t]{0,40}-[ \t]{1,3}[\"']?)"
# Between the words of a command line: as typed, as JSON, as a list of YAML, and as Redaction.words joins them.
_NEXT = rf"(?:{_LISTED}|[ \t\x1f]{{1,40}}(?:\\\r?\n[ \t]{{0,40}})?)"

_Replacement = Union[str, Callable[[Match[str]], str]]


def _named(match: Match[str]) -> str:
    """Leave what is said about a secret and is none: a count of tokens, the name of a Secret, where a file lies."""
    name, rest, value = match["name"].lower(), match["rest"], match["value"].strip("\\\"'`")
    counted = name == "token" and rest.lower().startswith("s") and _COUNT.match(value)
    where = name == "pwd" and value.startswith("/")
    if counted or where or _OF_SECRETS.match(rest) or _NOTHING.match(value):
        return match[0]
    return f"{match['head']}{REDACTED}"


def _told(match: Match[str]) -> str:
    """Leave words of a sentence, as in: the password is wrong."""
    return match[0] if _SAID.match(match["value"]) else f"{match['head']}{REDACTED}"


def _credentials(match: Match[str]) -> str:
    """Leave words that follow the name of a scheme, as in a sentence."""
    value = match["value"]
    if match["scheme"].lower() == "basic":
        try:
            secret = _BASE64.match(value) is not None and b":" in base64.b64decode(value + "=" * (-len(value) % 4))
        except ValueError:
            secret = False
    else:
        secret = not value.isalpha() or not (value.islower() or value.istitle())
    return f"{match['head']}{REDACTED}" if secret else match[0]


def _rule(pattern: str, replacement: _Replacement = rf"\g<head>{REDACTED}", flags: int = re.IGNORECASE) -> _Rule:
    return re.compile(pattern, flags), replacement


_RULES: Sequence[_Rule] = (
    # PEM, also one whose end was cut off, and PuTTY's.
    _rule(
        r"-----BEGIN [^-\n]{1,60}-----(?:(?!-----BEGIN)[\s\S])*?(?:-----END [^-\n]{1,60}-----|(?=-----BEGIN)|\Z)",
        REDACTED,
        0,
    ),
    _rule(r"(?P<head>\bPrivate-Lines:\s?[0-9]{1,3})(?:\r?\n[A-Za-z0-9+/=]{1,80}){1,200}", rf"\g<head> {REDACTED}"),
    _rule(r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,80}", REDACTED),
    # https://user:password@host, user:password@host, user:password@tcp(host)
    _rule(r"(?P<head>[a-z][a-z0-9+.-]{1,20}://)[^/\s\"'<>]{1,512}@(?!sha[0-9])", rf"\g<head>{REDACTED}@"),
    _rule(
        r"(?<![\w/.@:-])(?!mailto:|sips?:|xmpp:)(?P<head>[\w.-]{1,64}:)[^\s:@/\"'<>]{3,128}"
        r"@(?P<host>(?:tcp|udp|unix)\(|localhost\b|[a-z0-9-]{1,63}(?::[0-9]{2,5}\b|(?:\.[a-z0-9-]{1,63}){1,8}))",
        rf"\g<head>{REDACTED}@\g<host>",
    ),
    # URLs that are secrets themselves.
    _rule(
        rf"(?P<head>(?:{_WEB}|(?<![\w.-]))(?:hooks\.slack(?:-gov)?\.com{_SLASH}(?:services|workflows|triggers)"
        rf"|(?:[\w-]{{1,32}}\.)?discord(?:app)?\.com{_SLASH}api{_SLASH}(?:v[0-9]{{1,2}}{_SLASH})?webhooks"
        rf"|[\w.-]{{1,64}}\.webhook\.office\.com|outlook\.office(?:365)?\.com{_SLASH}webhook"
        rf"|api\.telegram\.org{_SLASH}(?:file{_SLASH})?bot(?=[0-9])|hooks\.zapier\.com{_SLASH}hooks|maker\.ifttt\.com"
        rf"|chat\.googleapis\.com{_SLASH}v1{_SLASH}spaces|[\w.-]{{1,64}}\.logic\.azure\.com(?::443)?"
        rf"|events\.pagerduty\.com{_SLASH}integration)(?:{_SLASH}|(?<=bot)))"
        r"[^\s\"'<>]{4,512}"
    ),
    _rule(rf"(?P<head>{_WEB}[\w.-]{{1,64}}{_SLASH}hooks{_SLASH})[^\s\"'<>]{{4,512}}"),
    _rule(
        r"(?P<head>[?&;](?:x-(?:amz|goog)-)?(?:sig|signature|credential|key|code|auth|pass|pw|jwt|assertion)=)[^\s&\"'<>#]{1,2048}"
    ),
    # Headers, to their end.
    _rule(
        r"(?P<head>\b(?P<scheme>bearer|basic|negotiate|ntlm|apikey)(?::?\s{1,3}|[ \t]{0,3}\\?\r?\n[ \t]{1,40}))"
        r"(?P<value>[A-Za-z0-9._~+/=-]{6,8192})",
        _credentials,
    ),
    _rule(r"(?P<head>\b(?:proxy-)?authorization\b\\?[\"']?\s{0,3}[:=]\s{0,3})[^\n]{1,8192}"),
    _rule(r"(?P<head>(?<![\w-])(?:set-)?cookie2?\b\\?[\"']?\s{0,3}:\s{0,3})[^\n]{1,8192}"),
    # Keys that are known by their beginnings.
    _rule(
        r"\b(?=(?P<header>eyJ[A-Za-z0-9_-]{6,1024}))(?P=header)\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*){0,3}",
        REDACTED,
        0,
    ),
    _rule(
        r"(?<![A-Za-z0-9])(?:(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
        r"|gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt)-[A-Za-z0-9_.-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"
        r"|(?:hf|api_org)_[A-Za-z0-9]{20,}|nvapi-[A-Za-z0-9_-]{16,}|sk-[A-Za-z0-9_-]{16,}|[srp]k_(?:live|test)_[A-Za-z0-9]{10,}"
        r"|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{16,}"
        r"|dckr_[po]at_[A-Za-z0-9_-]{16,}|hv[sbr]\.[A-Za-z0-9_-]{20,}|dapi[0-9a-f]{32}|do[por]_v1_[0-9a-f]{32,}"
        r"|gl(?:sa|c)_[A-Za-z0-9_=+/-]{16,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|NRAK-[A-Z0-9]{20,}|lin_api_[A-Za-z0-9]{20,}"
        r"|r8_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}|pplx-[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|sntry[su]_[A-Za-z0-9_=+/-]{16,}"
        r"|shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{20,}|ATATT3x[A-Za-z0-9_=-]{20,}|wandb_v1_[A-Za-z0-9_]{16,}|[0-9]{8,10}:AA[A-Za-z0-9_-]{32,}"
        r"|(?=[a-z]*[0-9])[a-z0-9]{6}\.(?=[a-z]*[0-9])[a-z0-9]{16}(?![\w.-]))",
        REDACTED,
        0,
    ),
    _rule(r"(?<![A-Za-z0-9+/=-])[A-Za-z0-9+/]{86}==(?![A-Za-z0-9+/=])", REDACTED, 0),
    # A variable of a container, in YAML, JSON or XML, and one whose value comes first.
    _rule(
        rf"(?P<head>\b(?:name|key)\\?[\"']?\s{{0,3}}[:=]\s{{0,3}}\\?[\"']?[\w.-]{{0,64}}(?P<name>{_NAMES}|_pass|_key)"
        rf"(?P<rest>[\w.-]{{0,32}})\\?[\"']?\s{{0,3}},?\s{{0,40}}\\?[\"']?value\\?[\"']?\s{{0,3}}[:=]{_GAP})(?P<value>{_VALUE})",
        _named,
    ),
    _rule(
        rf"(?P<head>\bvalue\\?[\"']?\s{{0,3}}:\s{{0,3}}\\?[\"']?)[^\n\"',]{{1,512}}(?P<end>\\?[\"']?\s{{0,3}},?\s{{0,40}}"
        rf"\\?[\"']?name\\?[\"']?\s{{0,3}}:\s{{0,3}}\\?[\"']?[\w.-]{{0,64}}(?:{_NAMES}|_pass|_key))",
        rf"\g<head>{REDACTED}\g<end>",
    ),
    _rule(
        rf"(?P<head><(?P<name>[\w.:-]{{0,32}}(?:{_NAMES})[\w.:-]{{0,32}})>)[^<\n]{{1,512}}(?=</)",
    ),
    # password = secret, "password": "secret", DB_PASS=secret
    _rule(
        rf"(?P<head>(?P<name>{_NAMES}|[_-](?:pass|auth|pat|bearer)(?![a-z]))(?P<rest>[\w.-]{{0,32}}){_SEPARATOR})(?P<value>{_VALUE})",
        _named,
    ),
    _rule(rf"(?P<head>(?<![\w.-])(?P<name>pass)(?P<rest>)=)(?P<value>(?![0-9]){_VALUE})", _named),
    _rule(rf"(?P<head>(?<![\w.-])auth=)(?!oauth|scram|sha|md5|ntlm|krb|kerberos|tls|mtls){_MIXED}"),
    _rule(r"(?P<head>\\?\"(?:auth|pass)\\?\"\s{0,3}:\s{0,3})(?:\\?\"[^\"\\]{0,8192}\\?\"?)"),
    _rule(r"(?P<head>(?<![\w.-])pass:\s{1,3})(?=[^\s]{0,64}[0-9])(?=[^\s]{0,64}[a-z])[^\s,;]{6,256}", flags=0),
    _rule(r"(?P<head>(?<![\w.-])(?P<scheme>)auth:\s{1,3})(?P<value>[A-Za-z0-9+/]{8,512}={0,2})", _credentials),
    _rule(rf"(?P<head>\b[A-Z][A-Z0-9_]{{0,64}}_(?P<name>KEY)(?P<rest>){_SEPARATOR})(?P<value>{_VALUE})", _named, 0),
    # --password secret, ["--api-key", "secret"]
    _rule(
        rf"(?P<head>(?<![\w-])--?[\w-]{{0,32}}(?P<name>{_NAMES}|creds|bearer)(?P<rest>[\w-]{{0,32}}){_NEXT})"
        rf"(?P<value>(?!-){_VALUE})",
        _named,
    ),
    _rule(
        rf"(?P<head>(?<![\w-])--(?:[\w-]{{0,32}}-)?(?P<name>pass)(?P<rest>){_NEXT})(?![0-9]{{1,3}}(?!\S))(?!-)(?P<value>{_VALUE})",
        _named,
    ),
    _rule(rf"(?P<head>(?<![\w-])--auth(?:=|{_NEXT})[\"']?[^\s:\"'@/]{{1,128}}:)[^\s\"',/]{{1,512}}"),
    # Programs whose flags are short.
    _rule(
        r"(?P<head>\bcurl\b[^\n|;]{0,512}?[\s\"'](?:-[a-zA-Z]{0,8}u|-U|--(?:proxy-)?user)[\s=]{0,3})"
        r"(?:\"(?!,)[^\"\n]{1,512}\"|'(?!,)[^'\n]{1,512}'|(?P<user>[^\s:\"']{0,128}:)[^\s\"']{1,512})"
    ),
    _rule(
        rf"(?P<head>(?<![\w-])(?:-[a-zA-Z]{{0,8}}u|-U|--(?:proxy-)?user){_LISTED}[^\s:\"'@/]{{1,128}}:)[^\s\"',]{{1,512}}"
    ),
    _rule(r"(?P<head>\b(?:mysql\w{0,16}|mariadb[\w-]{0,16})\b[^\n|;]{0,512}?[\s\"']-p)(?![\s\"',])[^\s\"',]{1,256}"),
    _rule(
        r"(?P<head>\b(?:sshpass|(?:sqlcmd|bcp|docker|podman|nerdctl|helm|oc|buildah|skopeo|crane|oras|az|mongo\w{0,8})\b[^\n|;]{0,256}?)"
        rf"[\s\"'](?:-p|-P)(?:{_NEXT}|=|(?<=sshpass.-p)))(?![\s0-9-])[^\s\"',]{{1,256}}"
    ),
    _rule(rf"(?P<head>\bopenssl\b[^\n|;]{{0,256}}?[\s\"']-[kK]{_NEXT})[^\s\"',]{{1,256}}"),
    _rule(
        r"(?P<head>^[ \t]{0,40}(?:requirepass|masterauth)[ \t]{1,40})[^\s]{1,512}", flags=re.IGNORECASE | re.MULTILINE
    ),
    _rule(r"(?P<head>\b(?:redis-cli|ldap[a-z]{3,10})\b[^\n|;]{0,256}?\s-[aw][\s=]{0,3})(?!\s)[^\s]{1,256}"),
    _rule(r"(?P<head>\b(?:smbclient|rpcclient)\b[^\n|;]{0,256}?\s-U[\s=]{0,3}[^\s%]{1,128}%)[^\s]{1,256}"),
    _rule(r"(?P<head>\bhtpasswd\s{1,3}-[a-zA-Z]{0,8}b[a-zA-Z]{0,8}\s{1,3}\S{1,256}\s{1,3}\S{1,128}\s{1,3})\S{1,256}"),
    _rule(r"(?P<head>\bpass:)[^\s\"']{3,256}"),
    _rule(r"(?P<head>\bwandb\s{1,3}login\s{1,3}(?:--\S{1,32}\s{1,3}){0,3})[A-Za-z0-9_]{20,128}"),
    _rule(
        r"(?P<head>\b(?:echo|printf)\s{1,3}(?:-n\s{1,3})?)[^\s|]{1,256}(?P<end>\s{0,3}\|[^\n|]{1,64}(?:\blogin\b|\bsudo\s[^\n|]{0,32}-S|-stdin\b))",
        rf"\g<head>{REDACTED}\g<end>",
    ),
    # .netrc
    _rule(r"(?P<head>\blogin\s{1,40}\S{1,128}\s{1,40}(?:account\s{1,40}\S{1,128}\s{1,40})?password\s{1,40})\S{1,512}"),
    # A password that stands behind its name, or SQL.
    _rule(
        r"(?P<head>\b(?:\w{0,32}[_-])?(?:passw(?:or)?d|passphrase|pwd|api[-_ ]?key|passwort|kennwort|contrase[nñ]a"
        r"|senha|mot de passe)(?:\s{1,3}(?:for|of|für|von|de|du)\s[^\n:;]{1,64}?\s{0,3}[:=])?"
        r"\s{1,3}(?:(?:[-–—]|ist|war|lautet|est|es|é)\s{0,3}:?\s{1,3})?[\"'(]?)"
        rf"(?!sha-?[0-9]|md5){_MIXED}"
    ),
    _rule(r"(?P<head>\btoken\s{1,3})(?=[a-z_.-]{0,64}[0-9])(?=[0-9_.-]{0,64}[a-z])[\w.-]{16,4096}"),
    _rule(
        r"(?P<head>\bidentified\s{1,3}(?:with\s{1,3}\S{1,64}\s{1,3})?by\s{1,3}(?:password\s{1,3})?)(?:'[^'\n]{1,256}'|\"[^\"\n]{1,256}\")"
    ),
    # A password in a sentence.
    _rule(
        rf"(?P<head>\b(?:{_NAMES})s?(?:\s{{1,3}}(?:for|of|to|on)\s[^\n:;]{{1,64}}?)?\s{{1,3}}"
        rf"(?:is|was|were|are|set to|changed to|equals|becomes)\s{{0,3}}(?::|\s)\s{{0,3}}(?:now\s)?)"
        rf"(?P<value>{_VALUE})",
        _told,
    ),
    _rule(
        r"(?P<head>\b(?:using|with|use|try|trying|enter|entered)\s{1,3}(?:the\s)?"
        r"(?:password|passphrase|token|secret|api[- ]?key)\s{1,3})"
        r"(?:\"[^\"\n]{1,512}\"|'[^'\n]{1,512}'|(?=[a-z]{0,64}[^a-z\s:,.;)])[^\s,;]{4,512})"
    ),
)
_SECRET_KIND = re.compile(r"""\bkind\\?["']?\s{0,3}:\s{0,3}\\?["']?Secret\b""")
_SECRET_YAML = re.compile(
    r"^(?P<head>(?P<indent>[ \t]*)(?:data|stringData):[ \t]*\r?\n)(?:(?P=indent)[ \t]+[^\n]*\n?)+", re.MULTILINE
)
_SECRET_JSON = re.compile(r"(?P<head>\\?\"(?:data|stringData)\\?\"\s{0,3}:\s{0,3})\{[^{}]{0,1048576}\}?")


def secret_name(name: str) -> bool:
    """Return whether what is called so is a secret, and not where one lies or what it is called."""
    name = name[:_LONGEST_KEY]
    return any(not _OF_SECRETS.match(name, found.end()) for found in _SECRET_NAME.finditer(name))


class Redaction:
    """Takes out what looks or is called secret, and these ``known`` values wherever they stand."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        values = {value.strip() for value in known}
        longest_first = sorted((value for value in values if len(value) >= _SHORTEST), key=lambda v: (-len(v), v))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        if _SECRET_KIND.search(text):
            text = _SECRET_YAML.sub(rf"\g<head>\g<indent>  {REDACTED}\n", text)
            text = _SECRET_JSON.sub(rf'\g<head>"{REDACTED}"', text)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        return _without_ends(text) if "-----END" in text else text

    def mapping(self, values: Dict[str, Any]) -> Dict[str, Any]:
        """Return names and values, as of labels, annotations or a ConfigMap's data."""
        if values.get("kind") == "Secret":
            values = {name: REDACTED if name in ("data", "stringData") else value for name, value in values.items()}
        name, value = values.get("name"), values.get("value")
        if isinstance(name, str) and isinstance(value, str) and value and secret_name(name):
            values = {**values, "value": REDACTED}
        return {
            self.text(str(name)): REDACTED if _told_as_text(value) and secret_name(str(name)) else self.document(value)
            for name, value in values.items()
        }

    def words(self, words: Sequence[str]) -> List[str]:
        """Return the words of a command line, where one of them may tell what the next is."""
        return self.text(_BETWEEN.join(words)).split(_BETWEEN)

    def document(self, value: Any) -> Any:  # noqa: ANN401 - as JSON is
        """JSON without secrets: names as well as values are looked at."""
        if isinstance(value, dict):
            return self.mapping(value)
        if isinstance(value, list) and value:
            texts = [item for item in value if isinstance(item, str)]
            return self.words(texts) if len(texts) == len(value) else [self.document(item) for item in value]
        return self.text(value) if isinstance(value, str) else value


def _told_as_text(value: Any) -> bool:  # noqa: ANN401 - as JSON is
    texts = value if isinstance(value, list) else [value]
    return any(texts) and all(isinstance(text, str) for text in texts)


def _without_ends(text: str) -> str:
    """Return the text without the rest of a PEM block whose beginning was cut off, as a log's end may have."""
    lines: List[str] = []
    for line in text.splitlines(keepends=True):
        if "-----END" in line:
            while lines and _PEM_LINE.match(lines[-1]):
                lines.pop()
            line = f"{REDACTED}\n"
        lines.append(line)
    return "".join(lines)
