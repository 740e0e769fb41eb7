"""Runs ``torchbus verify`` in a fork, and what it calls the causes."""

from __future__ import annotations

import json

from torchbus_testing.forking import fork_script

COMMAND = """
import sys
from torchbus_verify.command import main
raise SystemExit(main(sys.argv[1:]))
"""
DRAWS, READING, STATISTICS = "draws in training", "chance in reading data", "batch normalisation"
BETWEEN, COUNTED = (
    "a loss between samples, or a choice by the batch",
    "a number that each rank counts separately",
)
SUMMED, WEIGHTED, AVERAGED = (
    "a loss that is a sum over samples",
    "a loss weighted by something else than samples",
    "gradients that are not averaged as they should be",
)


def verified(*words, cwd):
    result = fork_script(COMMAND, "--json", *words, cwd=cwd, timeout_s=280)
    verdict = json.loads(result.stdout)
    assert result.status == verdict["status"], result.stderr
    return verdict


def names(verdict):
    return tuple(cause["name"] for cause in verdict["causes"])
