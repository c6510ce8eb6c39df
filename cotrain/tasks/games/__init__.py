"""Zero-sum games of two players in text: Kuhn poker, Nim, tic-tac-toe."""
