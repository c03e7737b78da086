"""How matrices lie in memory, how a kernel is called for them, and how many blocks that takes: pure arithmetic."""
