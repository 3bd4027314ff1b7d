"""Ten prompts, for holding one engine's greedy answers against another's."""

PROMPTS = (
    "Name three colours.",
    "Why is the sky blue?",
    "What is the capital of France?",
    "Count from one to ten.",
    "Write one sentence about a lighthouse.",
    "What is 2 + 2?",
    "Who wrote Romeo and Juliet?",
    "List the days of the week.",
    "What do cows eat?",
    "Say hello in Spanish.",
)
