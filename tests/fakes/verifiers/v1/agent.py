from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    messages: list
    terminated: bool = False

    @property
    def last_reply(self):
        return self.messages[-1].content.strip() if self.messages else ""
