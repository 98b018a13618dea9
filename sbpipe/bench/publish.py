"""Publishing ResNet-18 (44.7 MB) on one core: how long the loop is held, against a plain copy; and a model of
which each of two ranks holds a share.
"""

import torch

from sbpipe.bench import shards
from sbpipe.bench.rows import Row, one_core, seconds_per_call
from sbpipe.config import ModelConfig
from sbpipe.models import build_model, parts_of
from sbpipe.runs.spans import Spans
from sbpipe.weights.manifest import build_manifest
from sbpipe.weights.publisher import PartPublisher
from sbpipe.weights.replica import Replica, SlotSource
from sbpipe.weights.slots import Slots


def measure() -> list[Row]:
    """Publish and apply, each as a ratio to the plain copy."""
    model, other = (
        build_model(ModelConfig(name="resnet18_cifar"), num_classes=10, input_shape=(3, 32, 32), seed=seed)
        for seed in (0, 1)
    )
    manifest = build_manifest(model, parts_of(model))
    slots = Slots.create(manifest.num_bytes, name="bench")
    publisher = PartPublisher(model, manifest, slots, Spans(), lambda part, version, is_late: None)
    replica, source = Replica(other, manifest), SlotSource(slots)
    version = 0

    def publish() -> None:
        nonlocal version
        version += 1
        publisher.publish(version)

    def publish_and_apply() -> None:
        publish()
        # A version is applied once only, so each apply needs a publish of its own, which is subtracted below.
        source.refresh(replica, version, exact=False, deadline_s=1.0)

    one, two = (torch.zeros(manifest.num_bytes, dtype=torch.uint8) for _ in range(2))
    try:
        with one_core():
            plain_s = seconds_per_call(lambda: two.copy_(one))
            publish_s = seconds_per_call(publish)
            both_s = seconds_per_call(publish_and_apply)
    finally:
        slots.close()
    return [
        Row("publish", f"plain copy of {manifest.num_bytes / 1e6:.1f} MB", plain_s * 1e3, "ms"),
        Row("publish", "snapshot of ResNet-18 into shared memory", publish_s * 1e3, "ms"),
        Row("publish", "the loop is held, against the plain copy", publish_s / plain_s, "×", at_most=1.5),
        Row("publish", "apply by the selector, against the plain copy", (both_s - publish_s) / plain_s, "×"),
        *shards.measure(),
    ]
