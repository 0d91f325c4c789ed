# SPDX-License-Identifier: Apache-2.0
"""Write what the shim has for every export of a driver library: generate.py NAMES ARCH OUT SOURCE...

slots.h numbers the functions, names.inc and since.inc have their names and versions; stubs.S has a slot for each
function, which finds the driver's function when first called, and exports those that the sources do not wrap, as a jump
through their slot. Functions marked `tells` call meter_told() first, if anything is being measured. `wrappers` has the
address of each function that does more than to jump.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

JUMP = {
    "x86_64": "jmp *slots+{offset}(%rip)",
    "aarch64": "adrp x16, slots+{offset}\n\tldr x17, [x16, :lo12:slots+{offset}]\n\tbr x17",
}
TELL = {
    "x86_64": "cmpq $0, open_lanes(%rip)\n\tjne tell_{index}",
    "aarch64": "adrp x16, open_lanes\n\tldr x16, [x16, :lo12:open_lanes]\n\tcbnz x16, tell_{index}",
}
NUMBERED = {
    "x86_64": "push ${index}\n\tjmp {target}",
    "aarch64": "mov w16, #{index}\n\tb {target}",
}
# Keeps what may hold an argument, calls a function of ours, goes on as if the program had called the driver there.
KEEP = {
    "x86_64": """
{name}:
\tpush %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax
\tsub $136, %rsp
{save}
{call}
{restore}
\tadd $136, %rsp
\tpop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi
\tadd $8, %rsp
\tjmp *%r11
""".replace("{save}", "\n".join(f"\tmovups %xmm{n}, {16 * n}(%rsp)" for n in range(8))).replace(
        "{restore}", "\n".join(f"\tmovups {16 * n}(%rsp), %xmm{n}" for n in range(8))
    ),
    "aarch64": """
{name}:
\tstp x29, x30, [sp, #-224]!
\tmov x29, sp
\tstp x0, x1, [sp, #16]
\tstp x2, x3, [sp, #32]
\tstp x4, x5, [sp, #48]
\tstp x6, x7, [sp, #64]
\tstp x8, x16, [sp, #80]
\tstp q0, q1, [sp, #96]
\tstp q2, q3, [sp, #128]
\tstp q4, q5, [sp, #160]
\tstp q6, q7, [sp, #192]
{call}
\tldp q6, q7, [sp, #192]
\tldp q4, q5, [sp, #160]
\tldp q2, q3, [sp, #128]
\tldp q0, q1, [sp, #96]
\tldr x8, [sp, #80]
\tldp x6, x7, [sp, #64]
\tldp x4, x5, [sp, #48]
\tldp x2, x3, [sp, #32]
\tldp x0, x1, [sp, #16]
\tldp x29, x30, [sp], #224
\tbr x17
""",
}
RESOLVE = {
    "x86_64": "\tmov 192(%rsp), %edi\n\tcall resolve\n\tmov %rax, %r11",
    "aarch64": "\tmov w0, w16\n\tbl resolve\n\tmov x17, x0",
}
TOLD = {
    "x86_64": "\tcall meter_told\n\tmov 192(%rsp), %rax\n\tlea slots(%rip), %r11\n\tmov (%r11,%rax,8), %r11",
    "aarch64": (
        "\tbl meter_told\n\tldr w16, [sp, #88]\n\tadrp x17, slots\n\tadd x17, x17, :lo12:slots\n"
        "\tldr x17, [x17, w16, uxtw #3]"
    ),
}


@dataclass(frozen=True)
class Function:
    """``since``: the CUDA version from which on the name without suffix means this one."""

    tells: bool
    since: int


def exports(path: Path) -> tuple[dict[str, Function], dict[str, int]]:
    """Functions and variables (name: bytes) of a names file."""
    functions, variables = {}, {}
    for line in path.read_text().splitlines():
        match line.split("#")[0].split():
            case [name, "data", size]:
                variables[name] = int(size)
            case [name, *marks]:
                since = next((int(mark) for mark in marks if mark.isdigit()), 0)
                functions[name] = Function("tells" in marks, since)
    return functions, variables


def wrapped(sources: list[Path]) -> list[str]:
    """Return the names that the sources define with HOOK(name)."""
    return [name for source in sources for name in re.findall(r"^HOOK\((\w+)\)", source.read_text(), re.MULTILINE)]


def stubs(arch: str, functions: dict[str, Function], variables: dict[str, int], hooks: list[str]) -> str:
    """Return the assembly: the shared resolver, a lazy entry and a slot each, exported jumps, variables."""
    text = ['\t.section .note.GNU-stack, "", %progbits', "\t.text"]
    text += [KEEP[arch].replace("{name}", "lazy").replace("{call}", RESOLVE[arch])]
    if any(function.tells for function in functions.values()):
        text += [KEEP[arch].replace("{name}", "told").replace("{call}", TOLD[arch])]
    for index, (name, function) in enumerate(functions.items()):
        text += [f"lazy_{index}:\n\t{NUMBERED[arch].format(index=index, target='lazy')}"]
        if name not in hooks:
            jump = JUMP[arch].format(offset=8 * index)
            if function.tells:
                text += [f"tell_{index}:\n\t{NUMBERED[arch].format(index=index, target='told')}"]
                jump = f"{TELL[arch].format(index=index)}\n\t{jump}"
            text += [f"\t.globl {name}\n\t.type {name}, %function\n{name}:\n\t{jump}\n\t.size {name}, .-{name}"]
    more = [name if function.tells or name in hooks else "0" for name, function in functions.items()]
    text += ['\t.section .data.rel.ro, "aw"\n\t.balign 8\n\t.globl wrappers\n\t.hidden wrappers\nwrappers:']
    text += [f"\t.quad {name}" for name in more]
    text += ["\t.data\n\t.balign 8\n\t.globl slots\n\t.hidden slots\n\t.type slots, %object\nslots:"]
    text += [f"\t.quad lazy_{index}" for index in range(len(functions))]
    text += [
        "\t.size slots, .-slots",
        f"\t.globl own_last\n\t.hidden own_last\n\t.set own_last, {list(functions)[-1]}",
        "\t.bss\n\t.balign 8",
    ]
    for name, size in variables.items():
        text += [f"\t.globl {name}\n\t.type {name}, %object\n\t.size {name}, {size}\n{name}:\n\t.zero {size}"]
    return "\n".join(text) + "\n"


def main(names: str, arch: str, out: str, *sources: str) -> None:
    """Write the three files."""
    functions, variables = exports(Path(names))
    hooks = wrapped([Path(source) for source in sources])
    if unknown := sorted(set(hooks) - set(functions)):
        sys.exit(f"{names} lacks what the sources wrap: {', '.join(unknown)}. Add them.")
    slots = [f"    SLOT_{name}," for name in functions]
    Path(out, "slots.h").write_text("\n".join(["enum {", *slots, "    SLOT_COUNT", "};"]) + "\n")
    Path(out, "names.inc").write_text("".join(f'    "{name}",\n' for name in functions))
    Path(out, "since.inc").write_text("".join(f"    {function.since},\n" for function in functions.values()))
    Path(out, "stubs.S").write_text(stubs(arch, functions, variables, hooks))


if __name__ == "__main__":
    main(*sys.argv[1:])
