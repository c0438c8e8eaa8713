"""Counts what was tried and how it ended."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """The outcomes of many cases of one kind."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Descriptions of cases that ended as none may."""

    def add(self, outcome: str) -> None:
        """Count a case that ended well."""
        self.outcomes[outcome] += 1

    def blame(self, case: str) -> None:
        """Note a case that ended badly."""
        self.wrong.append(case)

    @property
    def cases(self) -> int:
        """Number of cases."""
        return sum(self.outcomes.values()) + len(self.wrong)

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in self.outcomes.most_common())
        lines = [f"{self.name}: {self.cases:,} cases: {counts or 'none well'}; {len(self.wrong):,} wrong"]
        return "\n".join(lines + [f"  WRONG {case}" for case in self.wrong[:20]])
