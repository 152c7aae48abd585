"""What all descriptions share: they are frozen, know all their fields, and their numbers are usable ones."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# A product of two of them, as steps and batch size, is an int64; one of several is a finite float.
LARGEST = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=LARGEST)]
Natural = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Config(BaseModel):
    """Base of the descriptions. Errors: pydantic's ValidationError, a ValueError, naming the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
