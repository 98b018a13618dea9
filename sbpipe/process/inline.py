"""A selector in the trainer's own process: a port whose one peer answers in the caller's thread."""

import torch

from sbpipe.link.inline import InlinePort
from sbpipe.link.messages import Heartbeat, Message
from sbpipe.machine import devices
from sbpipe.records import Lease
from sbpipe.selector.answer import Selector

INLINE = "inline"
"""The name of that selector."""


def port_to(selector: Selector, device: torch.device) -> InlinePort:
    """A port to a selector that computes on this device."""

    def handle(message: Message) -> list[Message]:
        devices.make_current(device)  # the caller's thread is the dispatcher's, which knows no device
        if isinstance(message, Lease):
            return [selector.answer(message)]
        return [Heartbeat(selector.progress)] if isinstance(message, Heartbeat) else []

    return InlinePort(handle, INLINE)
