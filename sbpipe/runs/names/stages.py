"""The stages that roles time: name of the span, role, whether it is work, label and meaning. Pure."""

from typing import Literal, NamedTuple

Role = Literal["trainer", "selector"]
Nature = Literal["work", "overhead", "wait", "apart", "side", "processor"]


class Stage(NamedTuple):
    """One stage of a role."""

    name: str
    role: Role
    nature: Nature
    """`work` counts as busy, `wait` as idle, `overhead` as neither; `apart` is time that ratios leave out;
    `side` runs in another thread, beside the loop; `processor` is processor time, not a stretch of the clock.
    """
    label: str
    """What pictures call it."""
    meaning: str


STAGES: tuple[Stage, ...] = (
    Stage("wait", "trainer", "wait", "wait", "nothing to train on"),
    # Happens within `wait`: it comes after it and is drawn over it.
    Stage(
        "wait_view",
        "trainer",
        "wait",
        "wait for loading",
        "part of `wait`: the next train batch was chosen, but not loaded yet",
    ),
    Stage("forward", "trainer", "work", "forward", "forward pass of a train batch"),
    Stage("weigh", "trainer", "overhead", "weigh", "weights of the examples from their fresh losses"),
    Stage("backward", "trainer", "work", "backward", "backward pass"),
    Stage("optimizer", "trainer", "work", "optimizer", "optimizer step"),
    Stage(
        "augment",
        "trainer",
        "work",
        "augment on the device",
        "an accelerator only: views of the next batch computed there, while the loop had nothing else for it",
    ),
    Stage("steer", "trainer", "overhead", "steer", "what the losses decide for the next leases"),
    Stage("publish", "trainer", "overhead", "publish", "a snapshot of all weights offered to the selectors"),
    Stage("publish_fast", "trainer", "overhead", "publish fast parts", "a snapshot of the fast parts alone"),
    Stage("log", "trainer", "overhead", "log", "events written"),
    Stage(
        "settle",
        "trainer",
        "overhead",
        "settle",
        "waiting for what steps left to the thread beside the loop (stage `after`)",
    ),
    Stage(
        "between",
        "trainer",
        "overhead",
        "between steps",
        "a user's own loop: what it does after an optimizer step and before it asks for the next batch",
    ),
    Stage(
        "evaluate",
        "trainer",
        "apart",
        "evaluate",
        "test error measured; of a user's own loop, whatever takes it longer than a few steps between two",
    ),
    Stage("checkpoint", "trainer", "apart", "checkpoint", "checkpoint written"),
    Stage(
        "receive",
        "trainer",
        "side",
        "receive",
        "what selectors said in a turn of the dispatcher, taken in",
    ),
    Stage("view", "trainer", "side", "load and augment", "examples loaded and augmented"),
    Stage("dispatch", "trainer", "processor", "dispatch", "the thread that talks to selectors"),
    Stage(
        "after",
        "trainer",
        "processor",
        "after a step",
        "a thread that steers and writes events beside the next step, where the loop has cores to itself",
    ),
    Stage("idle", "selector", "wait", "idle", "no lease to answer"),
    # `apply` and `transfer` happen within `await`: they come after it and are drawn over it.
    Stage("await", "selector", "wait", "await weights", "waiting for the weights that a lease asks for"),
    Stage("transfer", "selector", "side", "transfer", "weights over the wire"),
    Stage("transfer_fast", "selector", "side", "transfer fast parts", "fast parts over the wire"),
    Stage("apply", "selector", "work", "apply", "new weights put into the model"),
    Stage("apply_fast", "selector", "work", "apply fast parts", "new fast parts put into the model"),
    Stage("refresh", "selector", "work", "refresh", "new weights folded, cast or quantised for scoring"),
    Stage("view", "selector", "work", "load and augment", "candidates loaded and augmented"),
    Stage("score", "selector", "work", "score", "forward pass of candidates"),
    Stage("select", "selector", "work", "select", "keep probabilities, and which candidates are kept"),
    Stage(
        "tune",
        "selector",
        "work",
        "measure",
        "a piece of what is left to `auto` measured, between two leases",
    ),
    Stage("send", "selector", "overhead", "send", "a selection handed to the link"),
)
"""Every stage, in the order in which pictures draw and list them."""


def stages_of(role: Role, *natures: Nature) -> tuple[str, ...]:
    """The names of a role's stages of some natures, in order; of any nature if none is given."""
    return tuple(
        stage.name for stage in STAGES if stage.role == role and (not natures or stage.nature in natures)
    )


LOOP_STAGES = stages_of("trainer", "wait", "work", "overhead", "apart")
"""Stages of the trainer's loop itself: together, nearly all of its time."""
SIDE_STAGES = stages_of("trainer", "side")
"""Stages of the trainer's side threads."""
SELECTOR_STAGES = stages_of("selector")
# A stage of both roles (`view`) has one label.
STAGE_LABELS = {stage.name: stage.label for stage in STAGES}
