from pathlib import Path


class FakeCluster:
    def __init__(self, d: Path) -> None: ...
