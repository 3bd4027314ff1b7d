"""Ten prompts whose answers are in them, for holding one engine's greedy tokens against another's. Where a small model
makes something up, its two likeliest tokens are often closer than bfloat16 can tell, and every rounding answers."""

PROMPTS = (
    "The code word is tangerine. What is the code word?",
    "Repeat this sentence word for word: The keeper of the light wrote the word in the logbook.",
    "Anna is 34 years old and lives in Oslo. How old is Anna, and where does she live?",
    "Count from one to ten.",
    "List the days of the week, beginning with Monday.",
    "The train to Lyon leaves at 14:05 from platform 7. When does the train to Lyon leave, and from where?",
    "Write the letters of the alphabet, separated by commas.",
    "What is the capital of France? Answer with one short sentence.",
    "Translate nothing, only copy: red, green, blue, yellow, black, white, orange, purple, brown, pink.",
    "The meeting is on Tuesday in room 12. On which day is the meeting, and in which room?",
)
