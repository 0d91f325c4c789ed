#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""crictl, as far as our roles ask it: `crictl [--runtime-endpoint unix://SOCKET] info` prints the runtime's status."""

import sys

import grpc

DEFAULT = "unix:///run/containerd/containerd.sock"


def fields(message):
    """The length-delimited fields of a protobuf message, as (number, bytes)."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        number, kind = divmod(varint(), 8)
        length = varint()
        if kind == 2:
            yield number, message[position : position + length]
            position += length


def main():
    """Print the runtime's verbose status."""
    words = sys.argv[1:]
    endpoint = words[words.index("--runtime-endpoint") + 1] if "--runtime-endpoint" in words else DEFAULT
    with grpc.insecure_channel(endpoint) as channel:
        status = channel.unary_unary("/runtime.v1.RuntimeService/Status")
        try:
            # StatusRequest{verbose: true}; the response's second field maps names to JSON.
            answer = status(b"\x08\x01", timeout=10)
        except grpc.RpcError as error:
            sys.exit(f"{endpoint}: {error.details()}")
    for number, entry in fields(answer):
        if number == 2:
            print(": ".join(value.decode() for _, value in fields(entry)))


if __name__ == "__main__":
    main()
