"""Lists withdrawn commands and options as they were typed, and their replacements."""

from collections.abc import Mapping

WITHDRAWN: Mapping[str, str] = {
    "bench": "`python -m tests.performance.engines`, in a checkout, times the engines",
    "migrate": "`fssl reproduce ITEM` trains the runs again that an older version recorded under a different key",
    "plan --budget": "`timeout -s INT 2h fssl reproduce ITEM` runs as long as the time allows",
    "report --pictures": "`fssl report --out FOLDER` writes figures as SVG and PDF",
    "report --serve": "the site opens from a file: reports/site/index.html",
    "reproduce --budget": "`timeout -s INT 2h fssl reproduce ITEM` stops in time, and the same command resumes",
    "reproduce --takeover-after": "leave it out: a run whose worker is silent for two minutes is taken over",
    "run --dense": "`--engine reference` passes images below the threshold, too",
    "tune --list": "`fssl tune` names the studies; their ranges and reasons are in sweeps/*.toml and on their pages",
    "tune --takeover-after": "leave it out: the trial of a worker that is silent for two minutes is queued again",
    "tune --timeout": "`timeout -s INT 2h fssl tune STUDY` stops in time, and the same command resumes",
    "verify --replay": "`fssl verify --retrain N` trains N runs again",
    "work --no-wait": "leave it out: runs that other workers train are waited for",
    "work --takeover-after": "leave it out: a run whose worker is silent for two minutes is taken over",
}
