"""What verl, Ray or vLLM would find wrong minutes later, found before anything starts."""
