"""What torch's hooks show of a step, each in a process of its own, since hooks stay for good."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.job.watch_torch import TorchEyes

asked = []
def dies(path, existed):
    asked.append((Path(path).name, existed))
    return Path(path).name == "deadly.pt"

eyes = TorchEyes(dies)

class Keywords(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)
    def forward(self, *, samples):
        return self.inner(samples)

model = Keywords()
known = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
unknown = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
state = TrainState(model=model, optimizer=known)
seen = [eyes.look(state)]
for value in (1.0, 1.0, 2.0):
    model(samples=torch.full((3, 2), value)).sum().backward()
    known.step()
    unknown.step()
    seen.append(eyes.look(state))
directory = Path(sys.argv[1])
torch.save({"a": 1}, directory / "plain.pt")
torch.save({"a": 2}, directory / "plain.pt")
whole = torch.load(directory / "plain.pt")
print(json.dumps({"seen": seen, "asked": asked, "whole": whole}), flush=True)
torch.save({"a": torch.zeros(1000)}, directory / "deadly.pt")
print("survived")
"""


def test_inputs_optimizers_and_saves_are_seen(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -9, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    (before, first, second, third) = found["seen"]
    assert before == [{}, [0.5], None]
    assert first[1] == [0.5, 0.25] and list(first[0]) == ["unregistered optimizer"]
    # Data are told by their content, also where they are handed over by keyword.
    assert first[2] == second[2] != third[2] is not None
    # Momentum moves although the data are the same.
    assert first[0] != second[0]
    assert found["asked"] == [["plain.pt", False], ["plain.pt", True]] and found["whole"] == {"a": 2}
    torn = (tmp_path / "deadly.pt").stat().st_size
    assert 0 < torn < 4000
