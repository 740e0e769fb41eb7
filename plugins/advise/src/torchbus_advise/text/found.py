"""What was found in the script: the first lines."""

from __future__ import annotations

from torchbus_advise.observing.facts import Facts
from torchbus_advise.text.amounts import seconds, size
from torchbus_advise.trial.survey import Survey


def found(survey: Survey) -> str:
    facts = survey.facts["32"]
    lines = [_model(facts), _passes(facts)]
    if facts.hindrances:
        refused = ", ".join(facts.hindrances)
        lines.append(f"sharded strategies are left out: they refuse {refused}")
    if survey.real is not None:
        lines.append(_real(survey.real, facts))
    return "\n".join(lines)


def _model(facts: Facts) -> str:
    count = sum(one.bytes for one in facts.parameters)
    trained = sum(one.gradient_bytes for one in facts.parameters)
    states = sum(one.state_bytes + one.scalar_bytes for one in facts.parameters)
    names = ", ".join(one.name for one in facts.optimizers)
    blocks = f"; {facts.blocks} blocks that repeat" if facts.blocks else ""
    return (
        f"{size(count)} of parameters in {len(facts.parameters)} tensors, {size(trained)} of"
        f" gradients, {size(states)} of states ({names}){blocks}"
    )


def _passes(facts: Facts) -> str:
    largest = max(facts.passes, key=lambda one: one.activation_bytes)
    batch = "a batch" if largest.samples is None else f"a batch of {largest.samples}"
    return (
        f"{batch} makes {size(largest.activation_bytes)} of activations and"
        f" {largest.flops / 1e9:.3g} GFLOPs, forward and backward"
    )


def _real(real: Facts, facts: Facts) -> str:
    if real is facts:
        return "with real values only"
    held = max(one.activation_bytes for one in real.passes)
    pace = f"; a step takes {seconds(real.step_s)} here" if real.step_s else ""
    return f"with real values the activations are {size(held)}{pace}"
