"""What a run looks like: one page that follows it while it goes on and is, with its data inside, the report it
leaves."""
