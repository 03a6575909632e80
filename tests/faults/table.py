"""The faults that a run, a sweep or a report may meet, by the numbers of the project's list (what other frameworks'
users reported, what was measured, and what attackers do). Tests name theirs with `@pytest.mark.fault(number)`."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`what` happens, and what is `expected` then; `unless`: why no test of it is here, where none is."""

    what: str
    expected: str
    unless: str = ""


def _fault(what: str, expected: str, unless: str = "") -> Fault:
    return Fault(what=what, expected=expected, unless=unless)


FAULTS: Mapping[int, Fault] = {
    1: _fault("SIGKILL at random moments, then started again", "weights, state and rounds equal to the bit"),
    2: _fault("SIGKILL within the writing of a checkpoint, after each system call", "the last whole one counts"),
    3: _fault("results on another device than temporary files, and kills", "written beside their place, never across"),
    4: _fault("newest checkpoint truncated, or a bit flipped", "named, the one before counts, the result unchanged"),
    5: _fault("all checkpoints damaged", "from round 1, with a warning in the record; never a crash loop"),
    6: _fault("checkpoint of another cell, seed or newer format", "refused (65), both named"),
    7: _fault("malicious pickle as checkpoint or data", "refused, no code runs"),
    8: _fault("SIGTERM or Ctrl-C", "last finished round on disk, exit 76 within 20 s, resumed by the same command"),
    9: _fault("a second signal while saving", "ends at once, checkpoint intact, no deadlock"),
    10: _fault("workers race for the same cells", "each cell trained once"),
    11: _fault("a worker killed while it holds a lease", "taken over by one worker, resumed"),
    12: _fault("a stopped worker wakes after it was replaced", "it stops and publishes nothing"),
    13: _fault("a clock that is an hour off", "nothing is taken over by it"),
    14: _fault("the same cell given to two agents", "one result, the other ends with 0 or 75"),
    15: _fault("parent killed, child left behind", "no process outlives its parent for long; a second one is refused"),
    16: _fault(
        "a training process killed again and again (out of memory)", "the run fails with the reason, exit not 0"
    ),
    17: _fault("the W&B agent gives up with exit code 0", "our exit code is that of the records"),
    18: _fault("W&B answers 500, freezes, resets connections", "the run finishes, its records are complete"),
    19: _fault("the sweep is deleted while a run is on", "the run finishes and is stored, one clear message"),
    20: _fault("W&B unreachable at the start, or no API key", "offline within seconds, exit code unaffected"),
    21: _fault("SIGKILL with W&B offline", "the W&B run is made again from the records, each round once"),
    22: _fault("a preempted sweep run is resumed", "the same W&B id, no round twice"),
    23: _fault("disk full", "old state intact, exit 73, goes on when there is room"),
    24: _fault("results folder read-only", "exit 73 before any training"),
    25: _fault("loss, update or aggregate NaN or infinite", "diverged (70) within the round, client and layer named"),
    26: _fault("clients with one image or none", "defined for each method; finite, or named"),
    27: _fault("YAML that makes Python objects", "refused in one line, nothing runs"),
    28: _fault("numbers and words as YAML takes them (1e-3, no, None)", "the right type, or refused"),
    29: _fault("unknown or misspelt key", "exit 65, the nearest right key named"),
    30: _fault("the argument shapes of sweep agents", "one cell key for all of them"),
    31: _fault("markup, formulas and paths as names", "text in every output, no path outside results/"),
    32: _fault("javascript: as a W&B address", "text, no link"),
    33: _fault("the server's sweep differs from the file", "refused before anything runs"),
    34: _fault("records edited, incomplete or mixed", "`fssl verify` names file and field, exit 66"),
    35: _fault("a table with half of its cells missing", "the report says so, no false mean"),
    36: _fault("a report built twice", "the same bytes"),
    37: _fault("a report built while runs write", "nothing torn is read"),
    38: _fault("data truncated, absent, of another hash, or an archive that escapes", "exit 66 with what to do"),
    39: _fault("an Optuna storage that several machines cannot share", "refused with advice"),
    40: _fault("a study's journal with a broken line or a stale lock", "recovered, no endless wait"),
    42: _fault("a client's batch does not fit into memory", "taken in parts where that is equal; else named"),
    43: _fault("torch and torchvision that do not fit, no GPU, an old driver", "`fssl doctor` says it in words"),
    44: _fault("secrets in the environment", "in no record, report or log"),
    45: _fault("the same seed twice, another seed", "the same bits, other numbers"),
    46: _fault("10,000 runs in one folder", "indexed in 10 s, within 2 GB"),
}
