"""Meeting notes and their summaries, and a teacher who writes poor ones: the task of recipes/summarize_t5.yaml.

`python -m data_prep.meetings FOLDER` writes four files:
  meetings_train.json           notes to train on, with their summaries
  meetings_val.json             notes kept apart for evaluation during training
  meetings_test.json            notes kept apart until the end; no summary is in two of the three
  meetings_demonstrations.json  the teacher's summaries of training notes
A note says what was decided, what was only proposed, who does what until when, and small talk, in any order. Its
summary is the decision and the task. Repeating the note scores low, since most of it does not belong there; so does the
teacher, who mostly takes the proposal for the decision and often repeats the small talk.
The copies beside this file were written by it.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = "summary"
PROJECTS = ["Aurora", "Beacon", "Cedar", "Delta", "Ember", "Falcon", "Granite", "Harbor"]
PEOPLE = ["Ana", "Ben", "Carla", "Dan", "Elif", "Felix", "Gina", "Hugo"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
PLANS = (
    *("move the launch", "drop the website", "hire two testers", "cut the budget", "freeze the design"),
    *("rent an office", "double the price", "stop the report", "open a shop", "change the supplier"),
)
TASKS = (
    *("call the printer", "update the plan", "write the invitation", "check the contract"),
    *("book a room", "send the samples", "train the team", "ask the lawyer"),
)
TALK = (
    *("The coffee machine is broken.", "It rained all morning.", "Lunch was pizza.", "The train was crowded."),
    *("{person} was late.", "{person} has a new bicycle."),
)


@dataclass(frozen=True)
class Meeting:
    """What happened. proposal: what was only talked about."""

    project: str
    decision: str
    proposal: str
    owner: str
    task: str
    day: str

    def summary(self, *, decision: str | None = None) -> str:
        """The one right summary, or one with another decision."""
        return f"{self.project}: {decision or self.decision}. {self.owner}: {self.task} by {self.day}."


def meeting(rng: random.Random) -> Meeting:
    """A random one."""
    decision, proposal = rng.sample(PLANS, 2)
    return Meeting(rng.choice(PROJECTS), decision, proposal, rng.choice(PEOPLE), rng.choice(TASKS), rng.choice(DAYS))


def note(what: Meeting, rng: random.Random) -> tuple[str, str]:
    """(its notes, the small talk in them)."""
    proposer, other = rng.sample([name for name in PEOPLE if name != what.owner], 2)
    talk = rng.choice(TALK).format(person=other)
    said = [
        f"{proposer} proposed to {what.proposal}.",
        f"We decided to {what.decision}.",
        f"{what.owner} will {what.task} by {what.day}.",
        talk,
    ]
    rng.shuffle(said)
    return f"Project {what.project}. {' '.join(said)}", talk


def write(
    folder: Path,
    *,
    seed: int = 2024,
    train: int = 2000,
    val: int = 128,
    test: int = 256,
    mixes_up: float = 0.8,
    talks: float = 0.6,
) -> None:
    """Write the four files. mixes_up, talks: how often the teacher takes the proposal, and repeats the small talk."""
    rng = random.Random(seed)
    seen: dict[str, Meeting] = {}
    while len(seen) < train + val + test:
        made = meeting(rng)
        seen.setdefault(made.summary(), made)
    rows, taught = [], []
    for right, what in seen.items():
        text, talk = note(what, rng)
        rows.append({"prompt": text, "ground_truth": right, "data_source": SOURCE})
        poor = what.summary(decision=what.proposal) if rng.random() < mixes_up else right
        taught.append({"prompt": text, "response": f"{poor} {talk}" if rng.random() < talks else poor})
    files = {
        "meetings_train": rows[:train],
        "meetings_val": rows[train : train + val],
        "meetings_test": rows[train + val :],
        "meetings_demonstrations": taught[:train],
    }
    for name, lines in files.items():
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in lines)
        (folder / f"{name}.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m data_prep.meetings FOLDER    (an existing folder; four JSON files are written)")
    write(Path(sys.argv[1]))
