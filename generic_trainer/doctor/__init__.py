"""What is installed here, does it work, and how does one get what is missing?"""

from __future__ import annotations

from generic_trainer.doctor._examine import examine
from generic_trainer.doctor._symptom import Symptom

__all__ = ["Symptom", "examine"]
